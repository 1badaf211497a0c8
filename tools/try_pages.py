"""Runs the pages' commands that install with pip and serve, each in a folder of its own, until HoldMQ serves.

    PIP_CONSTRAINT=file PIP_FIND_LINKS=folder python -m tools.try_pages FOLDER

The file names the version of the wheel in the folder.  tools/wheels.sh calls it.  Exit status 0: each one served and
stopped.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.pages import Block, blocks

PAGES = ("docs/install.md", "docs/getting-started.md")
BLOCK_S = 600.0  # pip fetches packages
STOP_S = 60.0


def serves(block: Block, folder: Path) -> bool:
    """Whether the block begins to serve, and stops in order at Ctrl-C."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOLDMQ_MODULE")}
    shell = subprocess.Popen(
        ["/bin/bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    end = threading.Timer(BLOCK_S, os.killpg, [shell.pid, signal.SIGKILL])
    end.start()
    has_served = False
    try:
        for line in shell.stdout:
            sys.stdout.write(f"  {line}")
            if line.startswith("HoldMQ serves"):
                has_served = True
                os.killpg(shell.pid, signal.SIGINT)
        return has_served and shell.wait(STOP_S) in (0, 128 + signal.SIGINT, -signal.SIGINT)
    finally:
        end.cancel()
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)


def main() -> int:
    """Each block of the pages."""
    place = Path(sys.argv[1])
    for number, page in enumerate(PAGES):
        for block in blocks(page, "sh pip"):
            sys.stdout.write(f"{block}\n")
            if not serves(block, place / f"page-{number}"):
                sys.stderr.write(f"{block}: the commands did not serve, or did not stop\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
