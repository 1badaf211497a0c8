#!/bin/bash
# Puts the compose plugin of Docker (Debian 13 has it, Debian 12 has only the older docker-compose) into a folder.
#
#   tools/compose-plugin.sh FOLDER        DOCKER_CONFIG=FOLDER docker compose ...
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
cache=.cache/compose-plugin

bash tools/debian-unpack.sh "$cache" --suite trixie docker-compose
mkdir -p "$folder/cli-plugins"
cp "$cache/root/usr/libexec/docker/cli-plugins/docker-compose" "$folder/cli-plugins/docker-compose"
said=$(DOCKER_CONFIG=$folder docker compose version 2>&1) || {
    printf 'The compose plugin does not run: %s\n' "$said" >&2
    exit 1
}
