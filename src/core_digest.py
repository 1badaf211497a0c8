"""What the core was built from, as one number: so that an extension built from other sources is noticed.

core_build.py compiles the digest into the extension; holdmq.core compares it with this file's result when the sources
are there, that is, in a source checkout. It needs nothing but the standard library and reads about 100 small files.
"""

import hashlib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def digest() -> str:
    """SHA-256, in hexadecimal, of the names and contents of all files that the extension is built from."""
    total = hashlib.sha256()
    for path in sorted(path for suffix in ("*.c", "*.h", "*.py") for path in HERE.rglob(suffix)):
        content = path.read_bytes()
        total.update(f"{path.relative_to(HERE)} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()
