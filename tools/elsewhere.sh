#!/bin/bash
# Runs make in a copy of the working tree whose path has a space, below a folder that nobody else may enter.
#
#   tools/elsewhere.sh ARGUMENT...       of make
#
# What git ignores is not copied: the copy is built from the beginning.  It is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

place=$(mktemp -d) # mode 0700
trap 'rm -rf "$place"' EXIT
copy="$place/a copy/holdmq"
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create --ignore-failed-read |
    tar -x -C "$copy"
cd "$copy"
${MAKE:-make} --no-print-directory "$@"
