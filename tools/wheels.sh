#!/bin/bash
# Builds the source distribution and the wheel into build/dist, and tries both in empty environments outside the
# repository: the wheel on every server given, the source distribution on the embedded one.
#
#   tools/wheels.sh [SERVER...]        a server: a command that starts one, without its configuration file
#
# The wheel is for the C library of PLATFORM and any later one: the compiler is zig's, which links against the symbols of
# an older C library than that of this machine, and auditwheel checks what it made.  It contains the core, the pump and
# the server's module, for every Python from 3.11 on.
set -euo pipefail
cd "$(dirname "$0")/.."

PLATFORM=manylinux_2_28_$(uname -m)
GLIBC=2.28
python=${PYTHON:-python3}
tools=$PWD/build/wheels dist=$PWD/build/dist

if ! [ "$tools/.installed" -nt requirements-wheels.lock ]; then
    rm -rf "$tools"
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip --disable-pip-version-check install -qq --require-hashes --no-deps -r requirements-wheels.lock
    touch "$tools/.installed"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/cc" <<END
#!/bin/sh
exec "$tools/bin/python" -m ziglang cc -target $(uname -m)-linux-gnu.$GLIBC -fno-sanitize=undefined "\$@"
END
chmod +x "$work/cc"

printf '\n=== build\n'
CC="$work/cc" "$tools/bin/python" -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    exit 1
}
rm -rf "$dist"
mkdir -p "$dist"
cp "$work"/dist/*.tar.gz "$dist/"
PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --only-plat --plat "$PLATFORM" --wheel-dir "$dist" "$work"/dist/*.whl \
    2>"$work/auditwheel.log" || {
    cat "$work/auditwheel.log" >&2
    exit 1
}
ls -l "$dist"

# The versions of the lock file; their hashes were checked where it was made.
sed -n 's/^\([a-z0-9._-]*==[^ ;\\]*\).*/\1/p' requirements-runtime.lock >"$work/constraints.txt"

# An environment with an artifact and its extras; the scripts of this repository are out of its reach.
environment() {
    "$python" -m venv "$work/$1"
    (cd "$work" && "$work/$1/bin/python" -m pip --disable-pip-version-check install -qq -c constraints.txt "$2[bridge,server]")
}
cp tools/try_package.py "$work/"
try() {
    printf '\n=== %s: %s\n' "$1" "${2:-the embedded server}"
    (cd "$work" && env -u PYTHONPATH -u HOLDMQ_MODULE HOLDMQ_SERVER="${2:-}" "$work/$1/bin/python" -I try_package.py)
}

printf '\n=== the commands of the pages\n'
wheel=$(basename "$dist"/*.whl)
(
    cat "$work/constraints.txt"
    echo "$wheel" | sed 's/^\([^-]*\)-\([^-]*\)-.*/\1==\2/'
) >"$work/pages.txt"
PIP_CONSTRAINT=$work/pages.txt PIP_FIND_LINKS="$dist ${PIP_FIND_LINKS:-}" "${VENV:-.venv}/bin/python" -m tools.try_pages "$work"
environment wheel "$(echo "$dist"/*.whl)"
try wheel
number=0
for server in "$@"; do
    number=$((number + 1))
    # HOLDMQ_SERVER is one path: a server with a loader of its own becomes a script.
    printf '#!/bin/sh\nexec %s "$@"\n' "$server" >"$work/server-$number"
    chmod +x "$work/server-$number"
    try wheel "$work/server-$number"
done
environment sdist "$(echo "$dist"/*.tar.gz)"
try sdist
printf '\nBoth work: %s\n' "$(cd "$dist" && echo *)"
