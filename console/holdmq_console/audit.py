"""The audit stream: who changed what, when and from where.

    XADD {holdmq:console}:audit * who alice via session address 127.0.0.1 what session.drop target sensor-7 …

Invariants
 1. A change is written before it is made (`begun`). If it cannot be written, it is not made.
 2. A second entry names the first (`of`) and says how the change ended: `done`, or `failed` with the error. If the
    second entry is missing, the console ended in between, or the primary moved.
 3. Neither passwords nor payloads are written.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from holdmq_console.broker import Broker
from holdmq_console.keys import AUDIT
from holdmq_console.names import LAST_MS
from holdmq_console.principal import Principal
from holdmq_console.problems import ProblemError

MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the stream."""

    id: str
    at: datetime
    who: str
    via: str
    address: str
    what: str
    target: str
    detail: str
    outcome: str
    of: str


class Audit:
    """Writes and reads the stream.

    Args:
        broker: the server.
        entries: how many are kept, at least.
    """

    def __init__(self, broker: Broker, entries: int) -> None:
        self._broker = broker
        self._entries = entries

    @contextlib.asynccontextmanager
    async def change(self, by: Principal, what: str, target: str, detail: str = "") -> AsyncIterator[None]:
        """Writes down a change that the body makes, and how it ended.

        Raises:
            ProblemError: the primary has moved meanwhile, and may lack the change.
        """
        moves = await self._broker.primary.settled()
        begun = await self.write(by, what, target, detail, outcome="begun")
        try:
            yield
        except Exception as error:
            await self.write(by, what, target, str(error), outcome="failed", of=begun)
            raise
        await self.write(by, what, target, detail, of=begun)
        await self._broker.primary.confirm(moves)

    async def write(
        self, by: Principal, what: str, target: str, detail: str = "", *, outcome: str = "done", of: str = ""
    ) -> str:
        """Writes an entry, and returns its id."""
        fields = {
            "who": by.name,
            "via": by.via.value,
            "address": by.address,
            "what": what,
            "target": target[:MAX_TEXT],
            "detail": detail[:MAX_TEXT],
            "outcome": outcome,
            "of": of,
        }
        words = [word.encode("utf-8", "backslashreplace") for pair in fields.items() for word in pair]
        with _naming_a_key_of_another_type():
            added: bytes = await self._broker.write("XADD", AUDIT, "MAXLEN", "~", self._entries, "*", *words)
        return added.decode()

    async def read(self, before: str | None, count: int) -> list[Entry]:
        """The newest entries, or those before an id."""
        start = "+" if before is None else f"({before}"
        with _naming_a_key_of_another_type():
            found = await self._broker.client.xrevrange(AUDIT, start, "-", count=count)
        return [_entry(raw.decode(), fields) for raw, fields in found]


@contextlib.contextmanager
def _naming_a_key_of_another_type() -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        detail = f"the key {AUDIT} of the audit stream is not a stream; rename or delete it"
        raise ProblemError(502, detail) from error


def _entry(entry_id: str, fields: dict[bytes, bytes]) -> Entry:
    texts = {key.decode(): value.decode("utf-8", "backslashreplace") for key, value in fields.items()}
    at = datetime.fromtimestamp(min(int(entry_id.partition("-")[0]), LAST_MS) / 1000, UTC)
    names = ("who", "via", "address", "what", "target", "detail", "outcome", "of")
    return Entry(id=entry_id, at=at, **{name: texts.get(name, "") for name in names})
