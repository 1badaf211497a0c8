"""`python -m tests.bridge.cluster_program SETTINGS`: a bridge over a cluster as a process; the settings are JSON."""

import sys
from pathlib import Path

from holdmq.server import ChildProcess
from holdmq_bridge import serve
from holdmq_bridge.process.settings import Settings
from tests.support.ports import reserve_port


class ClusterProgram(ChildProcess):
    """Such a process on a free loopback port.

    Args:
        url: of any node.
        directory: where its log goes.
        settings: further ones.
    """

    def __init__(self, url: str, directory: Path, **settings: object) -> None:
        self._reserved = reserve_port()
        self.port = self._reserved.number
        made = Settings.model_validate({"redis": url, "host": "127.0.0.1", "port": self.port, **settings})
        command = [sys.executable, "-m", "tests.bridge.cluster_program", made.model_dump_json()]
        super().__init__(command, log=directory / f"bridge-{self.port}.log")

    def close(self) -> None:
        """Kill it if it still runs, and give the port back."""
        if self.running:
            self.kill()
        self._reserved.release()


if __name__ == "__main__":
    serve.main(Settings.model_validate_json(sys.argv[1]))
