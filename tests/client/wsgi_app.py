"""The gunicorn program of docs/python.md, with the server of the test; says which process and thread has answered.

The client is used before gunicorn forks, as a program would that checks its server when it is loaded.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from holdmq import HoldMQ

hold = HoldMQ.from_url(os.environ["HOLDMQ_URL"])
hold.require_module()


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Publishes the path, slowly enough that each process and thread has something to do."""
    hold.channel("visits").publish(environ["PATH_INFO"])
    time.sleep(0.02)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {threading.get_ident()}".encode()]
