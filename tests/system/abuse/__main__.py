"""`python -m tests.system.abuse KIND --port N --ws-port N --seconds S`: one client that does its worst."""

import argparse
import contextlib
import time
from importlib import import_module

from tests.system.abuse.target import BEGINS, Target


def main() -> None:
    """Ends after that time; a broker that closes the connection is met by a new one.

    A line on standard output says that it has begun.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.system.abuse")
    parser.add_argument("kind")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ws-port", type=int, default=0)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    target = Target(given.port, given.ws_port, time.monotonic() + given.seconds)
    kind = import_module(f"tests.system.abuse.{given.kind}")
    is_prepared = not hasattr(kind, "prepare")
    while not is_prepared and target.has_time():
        with contextlib.suppress(ConnectionError, TimeoutError):
            kind.prepare(target)
            is_prepared = True
    print(BEGINS, flush=True)
    while target.has_time():
        with contextlib.suppress(ConnectionError, TimeoutError):
            kind.abuse(target)


if __name__ == "__main__":
    main()
