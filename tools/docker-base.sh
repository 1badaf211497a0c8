#!/bin/bash
# Makes a base image for docker/Dockerfile from Debian's archive, in place of debian:12-slim from a registry.
#
#   tools/docker-base.sh IMAGE        as root, with debootstrap
#
# pip and npm in it trust the certificate authorities that this machine trusts, since that may reach the package indexes
# through a proxy with an authority of its own.
set -euo pipefail

image=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'Making %s from Debian bookworm\n' "$image"
debootstrap --variant=minbase bookworm "$work/root" http://deb.debian.org/debian >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    exit 1
}
rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
changes=()
authorities=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
if [ -r "$authorities" ]; then
    cp "$authorities" "$work/root/usr/local/share/authorities.pem"
    changes+=(--change "ENV PIP_CERT=/usr/local/share/authorities.pem")
    changes+=(--change "ENV NODE_EXTRA_CA_CERTS=/usr/local/share/authorities.pem")
fi
tar -C "$work/root" -c . | docker import "${changes[@]}" - "$image" >/dev/null
