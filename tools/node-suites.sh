#!/bin/bash
# Installs the Node.js libraries whose own tests `make test-libraries` runs: old versions, because the packages of later
# ones leave their tests out.
#
#   tools/node-suites.sh FOLDER
#
# FOLDER gets one folder for each folder of tests/libraries/node-suites, exactly as its package-lock.json says.  Node.js
# (18 or later) and npm come from Debian where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1

bash tools/needed.sh node npm
for suite in tests/libraries/node-suites/*/; do
    to=$folder/$(basename "$suite")
    mkdir -p "$to"
    cp "$suite/package.json" "$suite/package-lock.json" "$to/"
    # Not `npm ci`: it insists on optional packages for other platforms, which the lock file has not.
    npm install --prefix "$to" --ignore-scripts --omit=optional --no-save --package-lock=true --no-audit --no-fund --no-update-notifier --loglevel error
done
# The compiled tests of BullMQ: its own name for its folder, and the job processors, which are not compiled.
bullmq=$folder/bullmq/node_modules/bullmq
ln -sfn bullmq/dist "$bullmq/../@src"
cp -R "$bullmq/src/test/fixtures" "$bullmq/dist/test/"
touch "$folder/.installed"
