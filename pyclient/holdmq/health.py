"""Health checks of a server and of a bridge, for containers and services."""

import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request

import redis

from holdmq._sync.client import HoldMQ
from holdmq.primary import Primary
from holdmq.server import ServerError, check_module

KEY = "holdmq_health"
KEY_S = 60
TIMEOUT_S = 2.0


class UnhealthyError(Exception):
    """The server or the bridge does not work. The text says why."""


def check_server(hold: HoldMQ, primary: Primary | None = None) -> None:
    """Checks that the server has the module and accepts writes.

    Writes a key that expires, and publishes nothing (an empty TOPIC.PIPELINE). A full disk, full memory, a replica or
    a missing permission refuse that as they would refuse a publish.  A server that is being replaced accepts it, and
    would lose it: so Sentinels are asked, too.

    Args:
        hold: the client.
        primary: the primary, if the server has Sentinels.

    Raises:
        UnhealthyError: the server does not have the module, or refuses the write.
    """
    try:
        check_module(hold.client)
        with contextlib.nullcontext() if primary is None else primary.unmoved(hold.client, wait_s=0):
            hold.client.set(KEY, b"", ex=KEY_S)
            if isinstance(hold.client, redis.Redis):  # of one server
                _publish_nothing(hold.client)
    except (redis.RedisError, ServerError, OSError) as error:
        raise UnhealthyError(f"the server does not serve: {error}") from error


def _publish_nothing(client: redis.Redis) -> None:
    try:
        client.execute_command("TOPIC.PIPELINE", b"")
    except redis.OutOfMemoryError:
        raise
    except redis.ResponseError as error:
        if str(error).startswith("QUOTA"):
            raise
        # Else it is an older module, which publishes at least one, or a user who may write and not publish.


def check_bridge(url: str) -> None:
    """Checks that a bridge could store a publish now.

    Args:
        url: the URL of its metrics port.

    Raises:
        UnhealthyError: the bridge could not, or does not answer.
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
