#!/bin/bash
# Makes or updates a virtual environment from the lock files.
#
#   tools/venv.sh [--locks-only] PYTHON VENV LOCK...
#
# --locks-only leaves out HoldMQ itself.
#
# Debian packages that are missing (tools/needed.sh build) are installed or named first.  Safe to run twice at the same
# time.  Everything is installed with --require-hashes: nothing but what the lock files name, build tools included,
# reaches the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
project=yes
if [ "$1" = --locks-only ]; then
    project=no
    shift
fi
python=$1 venv=$2
shift 2

die() {
    printf 'make venv: %s\n' "$*" >&2
    exit 1
}

have_ensurepip() { "$python" -c 'import ensurepip' 2>/dev/null; }
mkdir -p .cache
exec 9>.cache/venv.lock
flock 9

PYTHON=$python bash tools/needed.sh build
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old: 3.11 or later is needed; name another with PYTHON=/path/to/python3"

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    if have_ensurepip; then
        "$python" -m venv --clear "$venv"
    else
        "$python" -m venv --clear --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" install -qq --require-hashes --no-deps -r requirements-build.lock
    fi
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

pip install -qq --require-hashes --no-deps -r requirements-build.lock
for lock in "$@"; do
    # --no-deps: the lock is complete, and leaves out on purpose what is never imported (see `make lock`).
    pip install -qq --require-hashes --no-deps --no-build-isolation -r "$lock"
done
[ $project = no ] || HOLDMQ_WITHOUT_CORE=1 pip install -qq --no-index --no-deps --no-build-isolation -e .
