#!/bin/bash
# Sees to it that servers which HoldMQ starts get the allocator that Redis and Valkey are usually built with: Debian's
# package libjemalloc2.  Without it they work, too, with glibc's.
#
#   tools/jemalloc.sh
set -euo pipefail
cd "$(dirname "$0")/.."

if PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -q 'libjemalloc\.so'; then
    exit 0
fi
bash tools/system-packages.sh libjemalloc2
