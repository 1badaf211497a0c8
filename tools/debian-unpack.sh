#!/bin/bash
# Unpacks packages of Debian 12 into a folder of their own; nothing is installed, no root is needed.
#
#   tools/debian-unpack.sh FOLDER [--suite SUITE] [--with-libraries] PACKAGE...
#
# FOLDER/root then has what the packages would put into /.  SUITE is another release of Debian (trixie).  With
# --with-libraries also the libraries that they ask for, and theirs in turn, but for the C library (the system's own
# serves) and LLVM (100 MB, for compiling queries).  apt's own sources, lists and package states are neither read nor
# written; what else apt is told on this machine (a proxy, say) holds.  Done once: a folder that is complete is left as it
# is; remove it to fetch anew.  Safe to run twice at the same time.
set -euo pipefail

die() {
    printf 'debian-unpack: %s\n' "$*" >&2
    exit 1
}

[ $# -ge 2 ] || die "expected: tools/debian-unpack.sh FOLDER [--suite SUITE] [--with-libraries] PACKAGE..."
folder=$1
shift
suite=bookworm libraries=
if [ "$1" = --suite ]; then
    suite=$2
    shift 2
fi
if [ "$1" = --with-libraries ]; then
    libraries=yes
    shift
fi

mkdir -p "$(dirname "$folder")"
folder=$(cd "$(dirname "$folder")" && pwd)/$(basename "$folder")
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder/complete" ] || exit 0

for tool in apt-get apt-cache dpkg-deb; do
    command -v $tool >/dev/null || die "no $tool here: $* are packages of Debian, which take Debian's tools"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || die "no $keyring here (Debian package debian-archive-keyring)"

work=$folder.new
rm -rf "$work" "$folder"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/{lists,archives}/partial "$work"/{debs,root}
: >"$work/apt/status"
echo "deb [signed-by=$keyring] http://deb.debian.org/debian $suite main" >"$work/apt/sources.list"
options=(
    -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State="$work/apt" -o Dir::State::Lists="$work/apt/lists"
    -o Dir::State::Status="$work/apt/status" -o Dir::Cache="$work/apt" -o APT::Sandbox::User= -o Acquire::Retries=3
    -o Acquire::Languages=none
)
printf 'Fetching from Debian: %s\n' "$*"
apt-get -qq "${options[@]}" update </dev/null || die "apt-get update failed for Debian $suite"

closure=()
if [ -n "$libraries" ]; then
    unwanted='^(libc6|libcrypt1|libgcc-s1|libstdc|libllvm)'
    depends() { apt-cache "${options[@]}" depends --important "$@"; }
    mapfile -t direct < <(depends "$@" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p' | grep -vE "$unwanted")
    mapfile -t closure < <(depends --recurse "${direct[@]}" | grep -E '^(lib|zlib)' | grep -vE "$unwanted" | sort -u)
fi
(cd "$work/debs" && apt-get -qq "${options[@]}" download "$@" "${closure[@]}" </dev/null) || die "apt-get download failed for $*"
for deb in "$work"/debs/*.deb; do
    dpkg-deb -x "$deb" "$work/root"
done
rm -rf "$work"/{apt,debs}
touch "$work/complete"
mv "$work" "$folder"
