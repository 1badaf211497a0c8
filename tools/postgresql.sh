#!/bin/bash
# Sees to it that what the tests of the migration need is there: a PostgreSQL 15 server and its driver for Java.
#
#   tools/postgresql.sh FOLDER
#
# FOLDER/bin is then a link to the server's programs, FOLDER/jdbc.jar one to the driver, FOLDER/lib to the libraries
# that the server was unpacked with (if it was).  What is installed is taken; the rest is unpacked from Debian into
# .cache, as debian-unpack.sh does it: no service is started, no user made.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
cache=$PWD/.cache/debian
mkdir -p "$folder" "$cache"

bin=/usr/lib/postgresql/15/bin
lib=$bin # no libraries of its own
if ! [ -x $bin/initdb ] || ! $bin/postgres --version >/dev/null; then
    bash tools/debian-unpack.sh "$cache/postgresql-15" --with-libraries postgresql-15
    bin=$cache/postgresql-15/root/usr/lib/postgresql/15/bin
    lib=$(dirname "$(find "$cache/postgresql-15/root/usr/lib" -name 'libpq.so.5' | head -n 1)")
    # Some packages have their libraries in /lib, which is the same folder where they are installed.
    [ ! -d "$cache/postgresql-15/root/lib" ] || cp -an "$cache/postgresql-15/root/lib/$(basename "$lib")/." "$lib/"
fi
LD_LIBRARY_PATH=$lib "$bin/postgres" --version >/dev/null || {
    printf 'PostgreSQL 15 in %s does not start; the tests of the migration need it (Debian 12: postgresql-15)\n' "$bin" >&2
    exit 1
}

jar=/usr/share/java/postgresql.jar
if [ ! -e $jar ]; then
    bash tools/debian-unpack.sh "$cache/postgresql-jdbc" libpostgresql-jdbc-java
    jar=$cache/postgresql-jdbc/root$jar
fi
ln -sfn "$bin" "$folder/bin"
ln -sfn "$lib" "$folder/lib"
ln -sfn "$jar" "$folder/jdbc.jar"
