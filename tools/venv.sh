#!/bin/bash
# Makes or updates a virtual environment from the lock files.
#
#   tools/venv.sh --begin PYTHON VENV                                what builds need: requirements-build.lock
#   tools/venv.sh [--locks-only] PYTHON VENV LOCK...                  the same, the lock files, and HoldMQ, editable
#
# --locks-only leaves out HoldMQ itself.
#
# Debian packages that are missing (tools/needed.sh build) are installed or named first.  Safe to run twice at the same
# time.  Everything is installed with --require-hashes: nothing but what the lock files name, build tools included,
# reaches the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
# What runs here runs several times, and would be compiled each time.
unset PYTHONDONTWRITEBYTECODE
project=yes
while [[ $1 == --* ]]; do
    case $1 in
    --begin | --locks-only) project=no ;;
    *)
        printf 'tools/venv.sh: no option %q; expected: --begin, --locks-only\n' "$1" >&2
        exit 2
        ;;
    esac
    shift
done
python=$1 venv=$2
shift 2

die() {
    printf 'make venv: %s\n' "$*" >&2
    exit 1
}

mkdir -p .cache
exec 9>.cache/venv.lock
flock 9

PYTHON=$python bash tools/needed.sh build
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old: 3.11 or later is needed; name another with PYTHON=/path/to/python3"

# Without the two runs of ensurepip, which install a pip that is replaced at once, and take several seconds.
begin() {
    local wheel work
    wheel=$(bash tools/bundled-pip.sh "$python")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    "$python" -m venv --clear --without-pip "$venv"
    if [ -n "$wheel" ]; then
        "$python" -m zipfile -e "$wheel" "$work"
        PYTHONPATH=$work "$venv/bin/python" -m pip "${install[@]}" -r requirements-build.lock
    else
        "$python" -m pip --python "$venv/bin/python" "${install[@]}" -r requirements-build.lock
    fi
}
install=(--disable-pip-version-check install -qq --no-compile --require-hashes --no-deps)
pip() { "$venv/bin/python" -m pip "$@"; }

if ! pip --version >/dev/null 2>&1; then
    begin
    cp requirements-build.lock "$venv/.build.lock"
elif ! cmp -s requirements-build.lock "$venv/.build.lock"; then
    pip "${install[@]}" -r requirements-build.lock
    cp requirements-build.lock "$venv/.build.lock"
fi
[ $# -gt 0 ] || exit 0
# HoldMQ needs nothing of the lock files to be installed: at the same time.
if [ $project = yes ]; then
    HOLDMQ_WITHOUT_CORE=1 pip --disable-pip-version-check install -qq --no-compile --no-index --no-deps \
        --no-build-isolation -e . &
    installing=$!
fi
for lock in "$@"; do
    # --no-deps: the lock is complete, and leaves out on purpose what is never imported (see `make lock`).
    pip "${install[@]}" --no-build-isolation -r "$lock"
done
[ $project = no ] || wait "$installing"
# On all processors.  A package may hold files that are no Python: templates, tests of parsers.
"$venv/bin/python" -m compileall -qq -j 0 "$venv"/lib/python3*/site-packages >/dev/null 2>&1 || true
