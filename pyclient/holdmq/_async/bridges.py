"""The MQTT bridges of a server and their clients, as the bridges report them.

Bridges write a report every few seconds (its keys: holdmq_bridge/monitoring/report.py) and answer questions that are
pushed to their list. A bridge that does not answer within `PATIENCE_S` is an error.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from holdmq._async.executor import AsyncExecutor
from holdmq.errors import NotAnsweredError
from holdmq.replies import BridgeRow, ClientRow

PREFIX = "{holdmq:bridges}:"
PATIENCE_S = 10.0
BLOCK_S = 1.0
QUESTION_S = 30


async def bridges_of(executor: AsyncExecutor) -> list[BridgeRow]:
    """The bridges whose last report has not expired, ordered by name."""
    names = await executor.send("ZRANGE", f"{PREFIX}names", 0, -1)
    found = []
    for name in sorted(text_of(one) for one in names):
        reply = await executor.send("HGETALL", PREFIX + name)
        fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        if fields:
            found.append(BridgeRow.of(name, {text_of(key): text_of(value) for key, value in fields.items()}))
    return found


async def clients_of(executor: AsyncExecutor, bridge: str, search: str) -> AsyncIterator[ClientRow]:
    """The clients of a bridge; reads a page at a time."""
    place = 0
    while True:
        answer = await ask(executor, bridge, {"ask": "clients", "from": place, "search": search})
        for row in answer["clients"]:
            yield ClientRow.of(row)
        place = answer["next"]
        if not place:
            return


async def kick_from(executor: AsyncExecutor, bridge: str, key: bytes, why: str) -> bool:
    """Makes a bridge disconnect the client of a session; returns whether the bridge had it."""
    inbox = (key + b"_inbox").decode()
    answer = await ask(executor, bridge, {"ask": "kick", "inbox": inbox, "why": why})
    return bool(answer["kicked"])


async def drain_of(executor: AsyncExecutor, bridge: str) -> int:
    """Makes a bridge drain; returns how many clients it has."""
    answer = await ask(executor, bridge, {"ask": "drain"})
    return int(answer["clients"])


async def settings_of(executor: AsyncExecutor, bridge: str) -> dict[str, Any]:
    """The settings that are in effect in a bridge, by their names."""
    found: dict[str, Any] = (await ask(executor, bridge, {"ask": "settings"}))["settings"]
    return found


async def ask(executor: AsyncExecutor, bridge: str, question: dict[str, Any]) -> dict[str, Any]:
    """Sends a question to a bridge and waits for the answer.

    Raises:
        NotAnsweredError: the bridge did not answer in time.
    """
    key = f"{PREFIX}answer:{secrets.token_hex(8)}"
    asked = f"{PREFIX}{bridge}:asked"
    await executor.send("RPUSH", asked, json.dumps({**question, "answer": key}))
    await executor.send("EXPIRE", asked, QUESTION_S)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        reply = await executor.send("BLPOP", key, BLOCK_S)
        if reply is not None:
            answer: dict[str, Any] = json.loads(reply[1])
            return answer
    raise NotAnsweredError(f"the bridge {bridge} has not answered within {PATIENCE_S:g} s")


def text_of(value: bytes | str) -> str:
    """A reply as text, whether the client decodes replies or not."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
