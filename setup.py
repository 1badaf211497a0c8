"""Builds the extension modules holdmq._core and holdmq_bridge._pump; everything else is declared in pyproject.toml.

HOLDMQ_WITHOUT_CORE=1 leaves them out: `make venv` installs the packages in editable mode before they are built, and
`make core` builds them where they are imported from.
"""

import os

from setuptools import setup

WITHOUT_CORE = os.environ.get("HOLDMQ_WITHOUT_CORE") == "1"

EXTENSIONS = ["src/core_build.py:ffibuilder", "bridge/native/pump_build.py:ffibuilder"]

setup(cffi_modules=[] if WITHOUT_CORE else EXTENSIONS)
