#!/bin/bash
# Runs make targets one after the other, goes on after one that fails, and sums up at the end.
#
#   tools/parts.sh TARGET...        exit status 0 only if every target succeeded
set -uo pipefail

failed=0 summary=
for target in "$@"; do
    begin=$SECONDS
    ${MAKE:-make} --no-print-directory "$target"
    status=$?
    # Ctrl-C is meant for all parts.
    [ $status -lt 128 ] || exit $status
    case $status in
    0) outcome=passed ;;
    *) outcome="failed (exit status $status)" failed=$((failed + 1)) ;;
    esac
    summary+=$(printf '%-22s %5d s  %s' "make $target" $((SECONDS - begin)) "$outcome")$'\n'
done
printf '\n=== %d of %d parts passed\n%s' $(($# - failed)) $# "$summary"
[ $failed = 0 ]
