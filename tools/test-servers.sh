#!/bin/bash
# Sees to it that the system's part of the servers and clients under test is there: Redis 7.0 and the Mosquitto clients.
#
#   tools/test-servers.sh FOLDER
#
# Debian's package redis-server starts a service on port 6379 when it is installed.  The binary itself is in redis-tools
# (as redis-check-rdb, which is the server under another name), so that one is installed, and FOLDER/redis-server
# linked to it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1

bash tools/needed.sh redis mosquitto-clients

server=$(command -v redis-server || command -v redis-check-rdb)
mkdir -p "$folder"
ln -sfn "$server" "$folder/redis-server"
case $("$folder/redis-server" --version) in
*"v=7.0."*) ;;
*)
    printf '%s is %s; the tests need Redis 7.0 (Debian 12: apt-get install redis-tools)\n' \
        "$server" "$("$folder/redis-server" --version)" >&2
    exit 1
    ;;
esac
