#!/bin/bash
# Sees to it that the broker of `make bench-mqtt`'s baseline is there: Debian's package mosquitto.
#
#   tools/mosquitto.sh
#
# The package starts a service on port 1883 when it is installed.  Debian asks /usr/sbin/policy-rc.d first, so that one
# which says no stands there while the package is installed, unless there is one already.
set -euo pipefail
cd "$(dirname "$0")/.."

if PATH=$PATH:/usr/sbin command -v mosquitto >/dev/null; then
    exit 0
fi

policy=/usr/sbin/policy-rc.d
if [ "$(id -u)" = 0 ] && [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
bash tools/system-packages.sh mosquitto
