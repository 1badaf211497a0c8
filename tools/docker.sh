#!/bin/bash
# Runs a command with a Docker daemon: the one that answers, or else one of its own, which ends with the command.
#
#   tools/docker.sh FOLDER COMMAND...
#
# FOLDER keeps what a daemon of its own has built.  Such a daemon needs root.  It changes no rule of the firewall, so its
# containers reach each other and nothing outside.  Images are therefore built in this machine's network, from a base that
# is made here (tools/docker-base.sh), and the command gets:
#
#   DOCKER_HOST, HOLDMQ_BASE (the base of docker-compose.yml), HOLDMQ_BUILD_NETWORK=host
set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)

die() {
    printf 'tools/docker.sh: %s\n' "$*" >&2
    exit 1
}

[ $# -ge 2 ] || die "expected: tools/docker.sh FOLDER COMMAND..."
folder=$1
shift

if docker version >/dev/null 2>&1; then
    exec "$@"
fi
[ "$(id -u)" = 0 ] || die "no Docker daemon answers, and starting one needs root; expected DOCKER_HOST or a running daemon"
command -v dockerd >/dev/null || die "no Docker daemon answers, and there is no dockerd to start (Debian package docker.io)"

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
exec 9>"$folder/lock"
flock -n 9 || die "another daemon uses $folder"
run=$(mktemp -d) # the path of a socket must be short
log=$folder/dockerd.log

# Ends with this script, however that ends.
setpriv --pdeathsig TERM dockerd --host "unix://$run/docker.sock" --data-root "$folder/data" --exec-root "$run/exec" \
    --pidfile "$run/pid" --bridge none --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false \
    9>&- >"$log" 2>&1 &
daemon=$!
remove_all() { # but the images
    local left
    left=$(docker ps --all --quiet)
    [ -z "$left" ] || docker rm --force --volumes $left >/dev/null
    docker network prune --force >/dev/null
    docker volume prune --force >/dev/null
}
finish() {
    remove_all || true
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" || true
    umount "$run"/exec/netns/* 2>/dev/null || true # that of this machine, in which images were built
    rm -rf "$run"
}
trap finish EXIT
export DOCKER_HOST=unix://$run/docker.sock
for _ in $(seq 300); do
    docker version >/dev/null 2>&1 && break
    kill -0 "$daemon" 2>/dev/null || die "dockerd does not start: $(tail -n 3 "$log")"
    sleep 0.2
done
docker version >/dev/null 2>&1 || die "dockerd did not answer within 60 s: $(tail -n 3 "$log")"

remove_all # what a run that was killed has left

export HOLDMQ_BASE=holdmq-base HOLDMQ_BUILD_NETWORK=host
docker image inspect "$HOLDMQ_BASE" >/dev/null 2>&1 || bash "$tools/docker-base.sh" "$HOLDMQ_BASE"
"$@"
