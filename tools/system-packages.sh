#!/bin/bash
# Installs Debian packages, or says which ones are missing.
#
#   tools/system-packages.sh PACKAGE...
#
# Installs without asking only as root on a machine with apt-get; otherwise it fails with the command to run.
set -euo pipefail

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    printf 'Needed here, and not installed: %s (names of Debian packages).\nRun as root: apt-get install %s\n' "$*" "$*" >&2
    exit 1
fi
printf 'Installing from Debian: %s\n' "$*"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null
