"""What the tests of channels share: policies in a line, what a server can do, a server without the module.

A `RawClient` shows what a subscriber hears: `pending()` returns confirmations and messages in their order, everything
that the server had for the connection when it answered a PING.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from holdmq import core
from holdmq.core import ChannelKey
from tests.support import RawClient, ReplyError, Server, ServerKind, eventually

MakeServer = Callable[..., Server]
MakeRaw = Callable[..., RawClient]
Part = str | bytes | int
TTL_SLACK = 64  # a list may live this part of its ttl longer


@contextmanager
def stock(kind: ServerKind, directory: Path, *config: str) -> Iterator[Server]:
    """A running server of the same kind without the module, for comparison."""
    server = Server(kind, directory, module=False, config=config)
    try:
        server.start()
        yield server
        server.check()
    finally:
        server.close()


def set_policies(client: redis.Redis, *rules: str) -> None:
    """Set the policy list, one rule an argument."""
    client.config_set("holdmq.policies", "; ".join(rules))


def information(client: redis.Redis) -> dict[str, Any]:
    """INFO holdmq, without the prefix of its fields."""
    return {name.removeprefix("holdmq_"): value for name, value in client.info("holdmq").items()}


def sees_commands(client: redis.Redis) -> bool:
    """Whether the server calls the module for each command; INFO tells it, which does not wake the module."""
    [module] = [module for module in client.info("modules")["modules"] if module["name"] == "holdmq"]
    return bool(module["filters"])


def serves_each(client: redis.Redis) -> bool:
    """Whether each subscriber gets its hand-off, or only the first of a channel (servers before 7.2)."""
    mode = information(client)["handoff"]
    assert mode in ("every-subscriber", "first-subscriber")
    return bool(mode == "every-subscriber")


def knows_clients(client: redis.Redis) -> bool:
    """Whether a command filter sees whose command it is (from 7.2 on)."""
    return bool(information(client)["client_in_filter"] == "yes")


def held_key(channel: str) -> str:
    """The list that holds the channel's messages."""
    return core.channel_key(channel).decode()


def last_key(channel: str) -> str:
    """The list that keeps the channel's last message."""
    return core.channel_key(channel, ChannelKey.LAST).decode()


def held(client: redis.Redis, channel: Part) -> list[Any]:
    """What the channel holds, oldest first; the same by LRANGE, since nobody uses the name for a key."""
    assert client.execute_command("TYPE", channel) == b"none"
    messages = list(client.execute_command("CHANNEL.RANGE", channel, 0, -1))
    if knows_clients(client):  # else it shows them only as long as all users of the server may read them
        assert client.execute_command("LRANGE", channel, 0, -1) == messages
    return messages


def kept_last(client: redis.Redis, channel: str) -> list[Any]:
    """What the channel keeps as its last message: of a list that has one element, or none."""
    return list(client.execute_command("LRANGE", last_key(channel), 0, -1))


def digest(client: redis.Redis) -> Any:
    """A checksum of all keys, values and expiry times."""
    return client.execute_command("DEBUG", "DIGEST")


def answers(connection: RawClient, *commands: Sequence[Part]) -> list[Any]:
    """Send commands one after the other and return all that came up to the end, errors as their text."""
    replies: list[Any] = []
    for command in commands:
        connection.send(*command)
        replies.append(plain(connection.read()))
    return replies


def plain(value: Any) -> Any:
    """Errors as their text, so that replies compare; also inside arrays."""
    if isinstance(value, ReplyError):
        return f"-{value}"
    return [plain(item) for item in value] if isinstance(value, list) else value


def messages(values: Sequence[Any]) -> list[Any]:
    """Of what a connection received, the payloads of messages, in their order."""
    kinds = (b"message", b"pmessage", b"smessage")
    return [value[-1] for value in values if isinstance(value, list) and value and value[0] in kinds]


def subscribe(connection: RawClient, *names: Part, command: str = "SUBSCRIBE") -> list[Any]:
    """Subscribe, check that a confirmation for each name comes, and return everything else that came."""
    connection.send(command, *names)
    came = connection.pending()
    kind = command.lower().encode()
    confirmed = [value[1] for value in came if isinstance(value, list) and value[0] == kind]
    assert confirmed == [name if isinstance(name, bytes) else str(name).encode() for name in names]
    return [value for value in came if not (isinstance(value, list) and value[0] == kind)]


@contextmanager
def busy(
    client: redis.Redis, connection: RawClient, *before: Sequence[Part], after: Sequence[Part] = ()
) -> Iterator[None]:
    """While an endless script of the connection runs, and the server refuses what others send; then it is killed.

    Args:
        client: of the server.
        connection: sends the script.
        before: commands that it sends before, in one go with the script.
        after: a command that it sends after it, in the same go.
    """
    client.config_set("busy-reply-threshold", 1)
    connection.send_all(*map(tuple, before), ("EVAL", "while true do end", 0), *([tuple(after)] if after else []))
    eventually(lambda: _is_refused(client))
    yield
    client.script_kill()
    eventually(lambda: not _is_refused(client))


def _is_refused(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.exceptions.ResponseError as error:
        return str(error).startswith("BUSY")
    return False
