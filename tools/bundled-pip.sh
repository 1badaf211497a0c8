#!/bin/bash
# Prints the path of the pip wheel that ships with Python (ensurepip), or nothing if there is none.
#
#   tools/bundled-pip.sh PYTHON
"$1" - <<'END'
import sysconfig
from pathlib import Path

try:
    import ensurepip
except ImportError:
    raise SystemExit
folders = [Path(ensurepip.__file__).parent / "_bundled", Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/nowhere")]
print(*[wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))][:1], end="")
END
