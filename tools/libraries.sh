#!/bin/bash
# Installs the libraries that `make test-libraries` runs, exactly as tests/libraries locks them.
#
#   tools/libraries.sh FOLDER PYTHON
#
# FOLDER/node has those for Node.js, FOLDER/venv those for Python, FOLDER/suites the sources of libraries whose own test
# suites are run, FOLDER/node-suites old versions for Node.js whose packages have their tests.  Node.js (18 or later) and npm come from Debian where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 python=$2

bash tools/needed.sh node npm
# Not `npm ci`: it insists on optional packages for other platforms, which the lock file has not.
npm_packages() { # FROM TO
    mkdir -p "$2"
    cp "$1/package.json" "$1/package-lock.json" "$2/"
    npm install --prefix "$2" --ignore-scripts --omit=optional --no-save --package-lock=true --no-audit --no-fund --no-update-notifier --loglevel error
}
npm_packages tests/libraries/node "$folder/node"
for suite in tests/libraries/node-suites/*/; do
    npm_packages "${suite%/}" "$folder/node-suites/$(basename "$suite")"
done
# The compiled tests of BullMQ: its own name for its folder, and the job processors, which are not compiled.
bullmq=$folder/node-suites/bullmq/node_modules/bullmq
ln -sfn bullmq/dist "$bullmq/../@src"
cp -R "$bullmq/src/test/fixtures" "$bullmq/dist/test/"

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
