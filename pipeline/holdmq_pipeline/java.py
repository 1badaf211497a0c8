"""Finds the Java that Spark runs on.

PySpark includes its own jars but no Java. `JAVA_HOME` is used if Spark supports its version; otherwise the places where
Debian's packages install Java are searched. Nothing is installed here.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

VERSIONS = (17, 21)
"""Releases of Java that Spark 4 supports."""
PLACES = Path("/usr/lib/jvm")


class JavaMissingError(Exception):
    """There is no Java that Spark supports."""


@cache
def version_of(home: Path) -> int | None:
    """Runs the Java in this folder, once per process, to learn its release; None if it does not run."""
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else None


def find_java() -> Path:
    """The folder of a Java that Spark supports.

    Raises:
        JavaMissingError: neither JAVA_HOME nor /usr/lib/jvm has one.
    """
    given = os.environ.get("JAVA_HOME")
    places = ([Path(given)] if given else []) + (sorted(PLACES.iterdir()) if PLACES.is_dir() else [])
    found = {place: version_of(place) for place in places}
    for version in VERSIONS:
        for place, its_version in found.items():
            if its_version == version:
                return place
    seen = ", ".join(f"{place} is {its_version}" for place, its_version in found.items() if its_version)
    raise JavaMissingError(
        f"no Java of version {' or '.join(map(str, VERSIONS))} in JAVA_HOME or {PLACES} ({seen or 'nothing there'}): "
        "Debian has it as openjdk-17-jre-headless"
    )
