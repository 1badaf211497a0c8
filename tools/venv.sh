#!/bin/bash
# Makes or updates a virtual environment from the lock files.
#
#   tools/venv.sh PYTHON VENV LOCK...
#
# Needs only an interpreter of Python 3.11 or later with its header files (the core is an extension module) and one
# way to get pip into a new environment: the module ensurepip (Debian: python3-venv), or a pip of at least 22.3
# (Debian: python3-pip).  What is missing is installed where that is possible without asking (root, apt-get), and
# named otherwise.  Safe to run twice at the same time.  Everything is installed with --require-hashes: nothing but
# what the lock files name, build tools included, reaches the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 venv=$2
shift 2

die() {
    printf 'make venv: %s\n' "$*" >&2
    exit 1
}

have_ensurepip() { "$python" -c 'import ensurepip' 2>/dev/null; }
have_pip() { "$python" -m pip --python "$(command -v "$python")" --version >/dev/null 2>&1; }
have_headers() {
    "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

# What is missing, as names of Debian packages.
missing_packages() {
    have_ensurepip || have_pip || echo python3-venv
    have_headers || echo python3-dev
}

mkdir -p .cache
exec 9>.cache/venv.lock
flock 9

command -v "$python" >/dev/null || die "no $python here; Python 3.11 or later is needed (Debian: apt-get install python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old: 3.11 or later is needed; name another with PYTHON=/path/to/python3"

packages=$(missing_packages)
if [ -n "$packages" ]; then
    bash tools/system-packages.sh $packages
    [ -z "$(missing_packages)" ] ||
        die "$python still lacks what Debian's $(echo $(missing_packages)) hold; name another with PYTHON=/path/to/python3"
fi

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
HOLDMQ_WITHOUT_CORE=1 pip install -qq --no-index --no-deps --no-build-isolation -e .
