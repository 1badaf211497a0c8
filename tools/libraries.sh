#!/bin/bash
# Installs the libraries that tests/system/test_libraries.py runs, exactly as tests/libraries locks them.
#
#   tools/libraries.sh FOLDER PYTHON
#
# FOLDER/node has those for Node.js, FOLDER/venv those for Python, FOLDER/suites the sources of libraries whose own test
# suites are run.  Node.js (18 or later) and npm come from Debian where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 python=$2

bash tools/needed.sh node npm
mkdir -p "$folder/node"
cp tests/libraries/node/package.json tests/libraries/node/package-lock.json "$folder/node/"
# Not `npm ci`: it insists on optional packages for other platforms, which the lock file has not.
npm install --prefix "$folder/node" --ignore-scripts --omit=optional --no-save --package-lock=true --no-audit --no-fund --no-update-notifier --loglevel error

# pip comes with .venv, and installs into the other environment.
"$python" -m venv --clear --without-pip "$folder/venv"
pip() { "$python" -m pip --disable-pip-version-check --python "$folder/venv/bin/python" "$@"; }
pip install -qq --require-hashes --no-deps -r requirements-build.lock -r tests/libraries/python/requirements.lock

rm -rf "$folder/suites"
mkdir -p "$folder/suites"
pip download -qq --require-hashes --no-deps --no-binary :all: \
    --no-build-isolation --dest "$folder/suites" -r tests/libraries/python/suites.lock
for archive in "$folder"/suites/*.tar.gz; do
    tar -xzf "$archive" -C "$folder/suites" --no-same-owner
done
touch "$folder/.installed"
