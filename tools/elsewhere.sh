#!/bin/bash
# Runs make in a copy of the working tree whose path has a space, below a folder that nobody else may enter.
#
#   tools/elsewhere.sh [--user NAME] [demo] ARGUMENT...       of make
#
# `demo` is run alone and before the others, and may take two minutes (DEMO_MOST_S seconds), what it builds included.
#
# With --user (as root) it is that user's folder, and make runs as that user: without root's rights, and without a way to
# get them.  What git ignores is not copied: the copy is built from the beginning.  It is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

user=
if [ "${1:-}" = --user ]; then
    user=$2
    shift 2
fi

place=$(mktemp -d) # mode 0700
trap 'rm -rf "$place"' EXIT
copy="$place/a copy/holdmq"
mkdir -p "$copy" "$place/home"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create --ignore-failed-read |
    tar -x -C "$copy"
run=()
if [ -n "$user" ]; then
    chown -R "$user:$(id -g "$user")" "$place"
    # Only what may be needed to fetch packages is kept of the environment.
    mapfile -t kept < <(env | grep -E '^(http_proxy|https_proxy|no_proxy|PIP_|NODE_EXTRA_CA_CERTS|SSL_CERT_|LANG|CI|WORKERS)' || true)
    run=(setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --no-new-privs
        env -i "${kept[@]}" "HOME=$place/home" "USER=$user" "LOGNAME=$user" PATH=/usr/local/bin:/usr/bin:/bin)
fi
cd "$copy"
# A newcomer's first command, with all that it builds.
if [ "${1:-}" = demo ]; then
    shift
    begin=$SECONDS
    "${run[@]}" "${MAKE:-make}" --no-print-directory demo
    took=$((SECONDS - begin)) most=${DEMO_MOST_S:-120}
    printf '=== make demo: %d s\n' "$took"
    if [ "$took" -gt "$most" ]; then
        printf 'make demo took %d s: at most %d expected\n' "$took" "$most" >&2
        exit 1
    fi
fi
[ $# = 0 ] || "${run[@]}" "${MAKE:-make}" --no-print-directory "$@"
