#!/bin/bash
# Puts a server of another Debian release, with all of its libraries, into a folder of its own.
#
#   tools/servers.sh NAME FOLDER        NAME: valkey-8.0 (bookworm-backports) or redis-8.0 (trixie)
#
# FOLDER/bin/server is started by the loader beside its libraries (tests/support/servers.py):
#
#   FOLDER/lib/ld.so --library-path FOLDER/lib FOLDER/bin/server
#
# Nothing of the system is replaced or installed, and apt's own sources, lists and package states are neither read nor
# written: apt is given other ones.  What else apt is told on this machine (a proxy, say) holds.  Done once: a folder
# that is complete is left as it is; remove it to fetch anew.  Safe to run twice at the same time.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    printf 'make servers: %s\n' "$*" >&2
    exit 1
}

[ $# = 2 ] || die "expected: tools/servers.sh NAME FOLDER"
name=$1 folder=$2
# The binary is the one that the tools call *-check-rdb: the server under another name.
case $name in
valkey-8.0) suites=(bookworm bookworm-backports) package=valkey-tools binary=valkey-check-rdb version="Valkey server v=8.0." ;;
redis-8.0) suites=(trixie) package=redis-tools binary=redis-check-rdb version="Redis server v=8.0." ;;
*) die "no server $name here; expected valkey-8.0 or redis-8.0" ;;
esac

mkdir -p "$(dirname "$folder")"
folder=$(cd "$(dirname "$folder")" && pwd)/$(basename "$folder")
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder/complete" ] || exit 0

for tool in apt-get apt-cache dpkg-deb gcc; do
    command -v $tool >/dev/null || die "no $tool here: $name comes as a package of Debian, which takes Debian's tools"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || die "no $keyring here (Debian package debian-archive-keyring)"

work=$folder.new
rm -rf "$work" "$folder"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/{lists,archives}/partial "$work"/{debs,root}
: >"$work/apt/status"
for suite in "${suites[@]}"; do
    echo "deb [signed-by=$keyring] http://deb.debian.org/debian $suite main"
done >"$work/apt/sources.list"

options=(
    -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State="$work/apt" -o Dir::State::Lists="$work/apt/lists"
    -o Dir::State::Status="$work/apt/status" -o Dir::Cache="$work/apt" -o APT::Sandbox::User= -o Acquire::Retries=3
    -o Acquire::Languages=none
)
printf 'Fetching %s from Debian %s\n' "$name" "${suites[*]}"
apt-get -qq "${options[@]}" update </dev/null || die "apt-get update failed for Debian ${suites[*]}"

# The libraries that the package asks for, and theirs in turn.  Its other wishes (users, services) are not for us.
depends() { apt-cache "${options[@]}" depends --important "$@"; }
libraries=$(depends "$package" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p')
[ -n "$libraries" ] || die "Debian ${suites[*]} has no package $package, or it asks for no libraries"
closure=$(depends --recurse $libraries | grep -E '^(lib|zlib)' | sort -u)
(cd "$work/debs" && apt-get -qq "${options[@]}" download "$package" $closure </dev/null) ||
    die "apt-get download failed for $package or its libraries"

for deb in "$work"/debs/*.deb; do
    dpkg-deb -x "$deb" "$work/root"
done
triplet=$(gcc -print-multiarch)
mkdir "$work/bin" "$work/lib"
for directory in "$work/root/lib/$triplet" "$work/root/usr/lib/$triplet"; do
    [ ! -d "$directory" ] || find "$directory" -maxdepth 1 -name '*.so*' -exec cp -a -t "$work/lib" {} +
done
cp -L "$work/root/usr/bin/$binary" "$work/bin/server"
loaders=("$work"/lib/ld-linux*.so.*)
[ -e "${loaders[0]}" ] || die "the C library of $name brought no loader for $triplet"
ln -s "$(basename "${loaders[0]}")" "$work/lib/ld.so"
rm -rf "$work"/{apt,debs,root}

run=("$work/lib/ld.so" --library-path "$work/lib" "$work/bin/server" --version)
said=$("${run[@]}" 2>&1) || die "$name does not start: $said"
case $said in
*"$version"*) ;;
*) die "expected $version, but Debian ${suites[*]} has: $said" ;;
esac
touch "$work/complete"
mv "$work" "$folder"
