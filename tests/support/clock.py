"""The clock of servers under test: what their modules take for the time, stepped at will (clock_shift.c)."""

import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shift.c")


class Clock:
    """Shifts the time of every server that is started with its environment.

    Args:
        folder: for the library and for what it reads.
    """

    def __init__(self, folder: Path) -> None:
        library = folder / "clock_shift.so"
        command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)
        self._shift = folder / "clock"
        self._shift.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "HOLDMQ_TEST_CLOCK": str(self._shift)}

    def step(self, by_us: int) -> None:
        """From now on the time is the real one and this many microseconds."""
        with self._shift.open("r+b") as file:  # in place: servers have it mapped, a shorter file would end them
            file.write(struct.pack("<q", by_us))
