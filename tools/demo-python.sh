#!/bin/bash
# Makes all that the demo needs of Python, beside the C files that make compiles at the same time, in the folder DEMO:
#
#   tools/demo-python.sh PYTHON DEMO LOCK COMPILER...
#
#   venv/             the packages of the lock file, and no other; those of IMPORTS are compiled
#   python/           copies of holdmq and holdmq_bridge, compiled
#   glue/*.o          what cffi generates for them, compiled by COMPILER; glue/*.objects: what it is linked with
#
# Everything at once, by several processes: on a busy machine each gets its part of it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 demo=$2 lock=$3
shift 3
compiler=("$@")
parts=4
imports="argon2, click, paho.mqtt.client, prometheus_client, pydantic_settings, redis.asyncio, uvloop, wsproto"
venv=$demo/venv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf "$demo/venv" "$demo/python" "$demo/glue"
mkdir -p "$demo/python" "$demo/glue"
"$python" -m venv --clear --without-pip "$venv"

# From 22.3 on pip installs into other environments.  The one for new environments has to be unpacked first.
if "$python" -c 'import pip; raise SystemExit(tuple(map(int, pip.__version__.split(".")[:2])) < (22, 3))' 2>/dev/null; then
    pip=("$python" -m pip --python "$venv/bin/python")
else
    "$python" -m zipfile -e "$(bash tools/bundled-pip.sh "$python")" "$work/pip"
    pip=(env "PYTHONPATH=$work/pip" "$venv/bin/python" -m pip)
fi
# A package begins at the margin of the lock file; its hashes are indented.  cffi and what it needs are the first part.
install() {
    awk -v part="$1" -v of=$parts '
        /^[a-zA-Z0-9]/ { here = /^(cffi|pycparser)==/ ? 1 : 2 + n++ % (of - 1) }
        here == part
    ' "$lock" >"$work/$1.lock"
    "${pip[@]}" --disable-pip-version-check install -qq --no-compile --require-hashes --no-deps -r "$work/$1.lock"
}
glue() {
    install 1
    "$venv/bin/python" tools/demo_glue.py "$demo/obj" "$demo/glue"
    local include
    include=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    "${compiler[@]}" -O0 "-I$include" -c "$demo/glue/_pump.c" -o "$demo/glue/_pump.o" &
    local pump=$!
    "${compiler[@]}" -O0 "-I$include" -c "$demo/glue/_core.c" -o "$demo/glue/_core.o"
    wait $pump
}
copy() {
    tar -c --exclude='*.so' --exclude=__pycache__ -C pyclient holdmq -C ../bridge holdmq_bridge | tar -x -C "$demo/python"
    "$venv/bin/python" -m compileall -qq "$demo/python"
    # What the client says of itself.
    "$venv/bin/python" - "$demo/python" <<'END'
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
folder = Path(sys.argv[1], f"{project['name']}-{project['version']}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
END
}

running=()
glue &
running+=($!)
for ((part = 2; part <= parts; part++)); do
    install $part &
    running+=($!)
done
copy &
running+=($!)
for one in "${running[@]}"; do
    wait "$one"
done
"$venv/bin/python" -c "import $imports"
