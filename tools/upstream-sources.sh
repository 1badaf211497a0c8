#!/bin/bash
# Puts the sources of a server, as Debian's source package has them, into a folder: for the server's own test suite.
#
#   tools/upstream-sources.sh NAME FOLDER    NAME: redis-7.0 (bookworm) or valkey-9.1 (sid)
#
# Nothing of them enters the repository or the module.  apt's own sources, lists and package states are neither read nor
# written; what else apt is told on this machine (a proxy, say) holds.  Done once: a folder that is complete is left as
# it is; remove it to fetch anew.  Safe to run twice at the same time.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    printf 'make test-upstream: %s\n' "$*" >&2
    exit 1
}

[ $# = 2 ] || die "expected: tools/upstream-sources.sh NAME FOLDER"
name=$1 folder=$2
case $name in
redis-7.0) suite=bookworm package=redis version=7.0.15 ;;
valkey-9.1) suite=sid package=valkey version=9. ;; # whichever it has: what fails without the module, too, does not count
*) die "no sources of $name here; expected redis-7.0 or valkey-9.1" ;;
esac

mkdir -p "$(dirname "$folder")"
folder=$(cd "$(dirname "$folder")" && pwd)/$(basename "$folder")
exec 9>"$folder.lock"
flock 9
[ ! -e "$folder/complete" ] || exit 0

for tool in apt-get tar xz; do
    command -v $tool >/dev/null || die "no $tool here: the sources of $name come as a package of Debian"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keyring ] || die "no $keyring here (Debian package debian-archive-keyring)"

work=$folder.new
rm -rf "$work" "$folder"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/{lists,archives}/partial "$work/sources"
: >"$work/apt/status"
echo "deb-src [signed-by=$keyring] http://deb.debian.org/debian $suite main" >"$work/apt/sources.list"
options=(
    -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State="$work/apt" -o Dir::State::Lists="$work/apt/lists"
    -o Dir::State::Status="$work/apt/status" -o Dir::Cache="$work/apt" -o APT::Sandbox::User= -o Acquire::Retries=3
    -o Acquire::Languages=none
)
printf 'Fetching the sources of %s from Debian %s\n' "$name" "$suite"
apt-get -qq "${options[@]}" update </dev/null || die "apt-get update failed for Debian $suite"
(cd "$work" && apt-get -qq "${options[@]}" source --download-only --tar-only "$package" </dev/null) ||
    die "apt-get source failed for $package of Debian $suite"
archives=("$work/${package}_$version"*.orig.tar.*)
[ -e "${archives[0]}" ] || die "Debian $suite has another version of $package than $version"
tar -xf "${archives[0]}" -C "$work/sources" --strip-components 1 --no-same-owner
mkdir "$folder"
mv "$work/sources/tests" "$folder/tests" # all that the suites need
touch "$folder/complete"
