"""Builds the extension module holdmq._core; everything else is declared in pyproject.toml.

HOLDMQ_WITHOUT_CORE=1 leaves the extension out: `make venv` installs the packages in editable mode before the core
is built, and `make core` builds it where it is imported from.
"""

import os

from setuptools import setup

WITHOUT_CORE = os.environ.get("HOLDMQ_WITHOUT_CORE") == "1"

setup(cffi_modules=[] if WITHOUT_CORE else ["src/core_build.py:ffibuilder"])
