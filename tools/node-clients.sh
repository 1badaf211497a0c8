#!/bin/bash
# Installs the Redis and MQTT clients for Node.js that tests/system talks through, exactly as tests/system/node locks them.
#
#   tools/node-clients.sh FOLDER
#
# Node.js (18 or later) and npm come from Debian where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1

bash tools/needed.sh node npm
if ! node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)'; then
    printf 'Node.js %s is too old: the clients under test need 18 or later\n' "$(node --version)" >&2
    exit 1
fi

mkdir -p "$folder"
cp tests/system/node/package.json tests/system/node/package-lock.json "$folder/"
npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error
touch "$folder/.installed"
