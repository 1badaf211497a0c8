#!/bin/bash
# Sees to it that a Chromium is there that needs no display, for the test of the page of an audit: Debian's smallest,
# where none is found.
#
#   tools/chromium.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# The same names for which tests/pipeline/test_audit.py looks.
have_chromium() {
    local name
    for name in chromium-headless-shell chromium google-chrome; do
        command -v $name >/dev/null && return
    done
    return 1
}

have_chromium || bash tools/system-packages.sh chromium-headless-shell
have_chromium || {
    printf 'No Chromium in PATH (Debian: apt-get install chromium-headless-shell)\n' >&2
    exit 1
}
