#!/bin/bash
# Installs Debian packages, or says which ones are missing.
#
#   tools/system-packages.sh PACKAGE...
#
# Installs without asking only as root on a machine with apt-get; otherwise it fails with the command to run.  No service
# is started by the installation: Debian asks /usr/sbin/policy-rc.d first, so a script that says no is there meanwhile,
# unless the machine has a script of its own.
set -euo pipefail

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    printf 'Missing Debian packages. Install them with: sudo apt-get install %s\n' "$*" >&2
    exit 1
fi
printf 'Installing from Debian: %s\n' "$*"
exec 9>/tmp/holdmq-system-packages.lock
flock 9
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null
