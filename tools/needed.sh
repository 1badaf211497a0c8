#!/bin/bash
# Names every missing Debian package at once, or installs them all: as root with apt-get.
#
#   tools/needed.sh NEED...        a need is a line of the table below, or a group of them: build, test, pipeline
#
# Exit status 0: everything is there (now).  1: something is missing; the last line of the output is the command that
# installs it.  PYTHON names the interpreter whose header files are needed (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
PATH=$PATH:/usr/sbin:/sbin

declare -A groups=(
    [build]="gcc python venv headers"
    [test]="redis mosquitto-clients mosquitto node npm jemalloc systemd"
    [pipeline]="java chromium"
    [compose]="docker docker-compose debootstrap mosquitto-clients"
)
declare -A packages=(
    [gcc]="gcc libc6-dev" [python]=python3 [venv]=python3-venv [headers]=python3-dev
    [redis]=redis-tools [mosquitto-clients]=mosquitto-clients [mosquitto]=mosquitto
    [node]=nodejs [npm]=npm [jemalloc]=libjemalloc2
    [tcl]=tcl8.6 [systemd]=systemd
    [java]=openjdk-17-jre-headless [chromium]=chromium-headless-shell
    [docker]=docker.io [docker-compose]=docker-compose [debootstrap]=debootstrap [valgrind]=valgrind
)

have() { command -v "$1" >/dev/null; }
have_gcc() { have gcc && echo '#include <stdio.h>' | gcc -E -o /dev/null - 2>/dev/null; }
have_python() { have "$python"; }
# ensurepip, or a pip that installs into other environments (22.3 or later).
have_venv() {
    have_python || return 0 # python3-venv comes with the need `python`, see missing_packages
    "$python" -c 'import ensurepip' 2>/dev/null ||
        "$python" -m pip --python "$(command -v "$python")" --version >/dev/null 2>&1
}
have_headers() {
    have_python || return 0
    "$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}
# The server is in redis-tools, too: redis-check-rdb is the same program under another name.
have_redis() { have redis-cli && { have redis-server || have redis-check-rdb; }; }
have_mosquitto-clients() { have mosquitto_pub && have mosquitto_sub; }
have_mosquitto() { have mosquitto; }
have_node() { have node; }
have_npm() { have npm; }
# grep reads to the end: with -q it would break the pipe, and the writer's failure would count.
have_jemalloc() { ldconfig -p | grep 'libjemalloc\.so' >/dev/null; }
# Its program that judges units; nothing is started.
have_systemd() { have systemd-analyze; }
have_tcl() { have tclsh8.6; }
# The same places in which pipeline/holdmq_pipeline/java.py looks.
have_java() {
    local home
    for home in "${JAVA_HOME:-}" /usr/lib/jvm/*; do
        [ -n "$home" ] && [ -x "$home/bin/java" ] && "$home/bin/java" -version 2>&1 | grep 'version "17\.' >/dev/null && return
    done
    return 1
}
# The same names for which tests/pipeline/test_audit.py looks.
have_chromium() { have chromium-headless-shell || have chromium || have google-chrome; }
# With another daemon nobody needs that of Debian.
have_docker() { have docker && { have dockerd || docker version >/dev/null 2>&1; }; }
# 1.29, the program of its own: the plugin comes from tools/compose-plugin.sh.
have_docker-compose() { have docker-compose; }
have_debootstrap() { have debootstrap; }
have_valgrind() { have valgrind && have callgrind_control; }

needs=()
for word in "$@"; do
    for need in ${groups[$word]:-$word}; do
        [ -n "${packages[$need]:-}" ] || {
            printf 'tools/needed.sh: no need %q; expected: %s\n' "$need" "${!groups[*]} ${!packages[*]}" >&2
            exit 2
        }
        needs+=("$need")
    done
done

missing_packages() {
    local need
    for need in "${needs[@]}"; do
        "have_$need" || echo "${packages[$need]}"
        # Without an interpreter nobody can say what else it lacks.
        [ "$need" != python ] || have_python || echo python3-venv python3-dev
    done
}

missing=$(missing_packages | xargs)
[ -n "$missing" ] || exit 0
bash tools/system-packages.sh $missing
hash -r
missing=$(missing_packages | xargs)
[ -z "$missing" ] || {
    printf 'Installed, and still not found: what the Debian packages %s hold\n' "$missing" >&2
    exit 1
}
