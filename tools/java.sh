#!/bin/bash
# Sees to it that a Java 17 is there, which Spark runs on: Debian's, where none is found.
#
#   tools/java.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# The same places in which the pipeline looks (pipeline/holdmq_pipeline/java.py).
have_java() {
    local home
    for home in "${JAVA_HOME:-}" /usr/lib/jvm/*; do
        [ -n "$home" ] && [ -x "$home/bin/java" ] && "$home/bin/java" -version 2>&1 | grep -q 'version "17\.' && return
    done
    return 1
}

have_java || bash tools/system-packages.sh openjdk-17-jre-headless
have_java || {
    printf 'No Java 17 in JAVA_HOME or /usr/lib/jvm; Spark needs it (Debian: apt-get install openjdk-17-jre-headless)\n' >&2
    exit 1
}
