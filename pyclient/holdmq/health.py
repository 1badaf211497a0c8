"""Whether a server or a bridge serves, as a client would find it: for the health checks of containers and services."""

import json
import urllib.error
import urllib.parse
import urllib.request

import redis

from holdmq._sync.client import HoldMQ
from holdmq.server import ServerError, check_module

KEY = "holdmq_health"
KEY_S = 60
TIMEOUT_S = 2.0


class UnhealthyError(Exception):
    """It does not serve; the text says why."""


def check_server(hold: HoldMQ) -> None:
    """Checks that the server has the module and stores what it is given.

    A key is written that expires: a full disk, a full memory, a replica or a missing right refuse it as they refuse a
    publish.

    Raises:
        UnhealthyError: it has not, or does not.
    """
    try:
        check_module(hold.client)
        hold.client.set(KEY, b"", ex=KEY_S)
    except (redis.RedisError, ServerError, OSError) as error:
        raise UnhealthyError(f"the server does not serve: {error}") from error


def check_bridge(url: str) -> None:
    """Checks that a bridge could store a publish now.

    Args:
        url: of its metrics port.

    Raises:
        UnhealthyError: it could not, or is not there.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.netloc:
        raise UnhealthyError(f"{url!r} is not the address of a bridge; expected http://host:port")
    status, body = _get(f"http://{parts.netloc}/readyz")
    if status == 404:  # an older bridge
        status, body = _get(f"http://{parts.netloc}/healthz")
    if status != 200:
        raise UnhealthyError(f"the bridge is not ready ({status}): {body.strip()}")


def _get(url: str) -> tuple[int, str]:
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            return response.status, json.dumps(json.load(response))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise UnhealthyError(f"the bridge at {url} does not answer: {error}") from error
