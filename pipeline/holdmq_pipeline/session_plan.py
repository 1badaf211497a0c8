"""Plans which messages a migration stores, in pieces: made once, kept by Spark, then reported, imported and compared.

    source ──► rows, the newest first ──► pieces ──► sorted, kept ──► report; import; comparison

A piece is a row with up to `PIECE_MESSAGES` messages of a client, as one string of bytes: neither Spark's JVM nor its
shuffles see single messages. The first piece of a client in order (`head`) has the figures of the whole client, and
exists even if nothing is to be stored. The pieces of a client have ranges of serials, low to high, without gaps.

    packed    little-endian int64: messages; [messages][5]: packet identifier, serial, state, lives until, length of
              the value; then the values, one after the other

Invariants:
    1. At most `limit` messages of a client are planned, the newest ones. A queue is read from its end for that, so that
       memory holds one piece of it.
    2. `repeated_ids` of a head counts messages whose packet identifier an older message has. `Renamer` gives them
       identifier 0, in the order of the messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from struct import pack, unpack_from
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from holdmq import core
from holdmq_pipeline.history_reader import without_collector
from holdmq_pipeline.options import Options
from holdmq_pipeline.tbmq import EXPIRED, OVERSIZED, OWN, Row, Source
from holdmq_pipeline.tbmq_messages import RELEASED
from holdmq_pipeline.wire import Link, as_map, checked, command

PIECE_MESSAGES = 2000
PIECE_BYTES = 1 << 20
CLIENTS_TOGETHER = 500
BYTES_TOGETHER = 4 << 20
LAST_SERIAL = 2**53
WIDTH = 5
PLANNED = (
    "client_id string, low long, high long, head boolean, messages long, bytes long, released long, expired long, "
    "oversized long, unreadable long, beyond_limit long, repeated_ids long, example string, last_packet_id int, "
    "connected boolean, held long, ours boolean, packed binary"
)
ARROW_PLANNED = pa.schema(
    [
        ("client_id", pa.string()), ("low", pa.int64()), ("high", pa.int64()), ("head", pa.bool_()),
        ("messages", pa.int64()), ("bytes", pa.int64()), ("released", pa.int64()), ("expired", pa.int64()),
        ("oversized", pa.int64()), ("unreadable", pa.int64()), ("beyond_limit", pa.int64()),
        ("repeated_ids", pa.int64()), ("example", pa.string()), ("last_packet_id", pa.int32()),
        ("connected", pa.bool_()), ("held", pa.int64()), ("ours", pa.bool_()), ("packed", pa.binary()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """Where the sessions go.

    Attributes:
        options: of the server; keyPrefix is the prefix of the session keys.
        run: the name of this migration: the same name continues what was begun under it.
        merge: messages are appended to what a session has already.
        expiry_s: of the sessions, from now on (2**32-1: never).
    """

    options: Options
    run: str = "tbmq"
    merge: bool = False
    expiry_s: int = 2**32 - 1

    def key(self, client_id: str) -> bytes:
        """The session key."""
        return self.options.text("keyPrefix").encode() + core.session_key(client_id)

    def producer(self) -> str:
        """The name under which calls are numbered."""
        return f"migrate:{self.run}"


class Waiting(NamedTuple):
    """A message that is to be stored."""

    packet_id: int
    serial: int
    state: int
    lives_until: int
    value: bytes


def planned(source: Source, target: Target, limit: int) -> DataFrame:
    """The pieces of all clients, those of a client together and in order; columns of `PLANNED`."""
    read = source.read
    made = source.frame.mapInArrow(lambda batches: _plan(read(batches), target, limit), PLANNED)
    return made.sortWithinPartitions("client_id", "low")


def unpacked(packed: bytes) -> list[Waiting]:
    """The messages of a piece, in order."""
    if not packed:
        return []
    (count,) = unpack_from("<q", packed)
    words = unpack_from(f"<{WIDTH * count}q", packed, 8)
    begin = 8 + 8 * WIDTH * count
    bounds = pairwise(accumulate(words[4::WIDTH], initial=begin))
    values = [packed[start:end] for start, end in bounds]
    fields = zip(words[0::WIDTH], words[1::WIDTH], words[2::WIDTH], words[3::WIDTH], values, strict=True)
    return list(map(Waiting._make, fields))


class Renamer:
    """Gives messages 0 whose packet identifier an older one of the client bears; they are taken in order."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def of(self, messages: Sequence[Waiting]) -> list[Waiting]:
        """The same messages."""
        done = []
        for message in messages:
            repeated = message.packet_id in self._seen
            self._seen.add(message.packet_id)
            done.append(message._replace(packet_id=0) if repeated else message)
        return done


# ---- making pieces ----


@dataclass
class _Client:
    """A client whose rows come, the newest first."""

    client_id: str
    high: int = LAST_SERIAL
    last_packet_id: int = 0
    taken: int = 0
    expired: int = 0
    oversized: int = 0
    unreadable: int = 0
    beyond_limit: int = 0
    example: str | None = None
    named: int = 0
    ids: set[int] = field(default_factory=set)
    messages: list[Row] = field(default_factory=list)
    size: int = 0

    def take(self, rows: Sequence[Row], limit: int) -> Iterator[dict[str, Any]]:
        """Rows, in the order in which they come; the pieces that are full."""
        good = rows[0][1] != OWN and not any(row[6] for row in rows)
        size = sum(len(row[5] or b"") for row in rows)
        count = len(rows)
        if (
            good
            and self.taken + count <= limit
            and len(self.messages) + count < PIECE_MESSAGES
            and self.size + size < PIECE_BYTES
        ):
            self._keep(rows, size)
            return
        for row in rows:
            self._take_one(row, limit)
            if len(self.messages) == PIECE_MESSAGES or self.size >= PIECE_BYTES:
                yield self.piece(head=False)

    def _take_one(self, row: Row, limit: int) -> None:
        _, serial, packet_id, _, _, value, problem = row
        if serial == OWN:
            self.last_packet_id = packet_id
        elif value is None:
            self._leave_out(serial, problem or "")
        elif self.taken == limit:
            self.beyond_limit += 1
        else:
            self._keep([row], len(value))

    def _keep(self, rows: Sequence[Row], size: int) -> None:
        named = [row[2] for row in rows if row[2]]
        self.taken += len(rows)
        self.named += len(named)
        self.ids.update(named)
        self.messages += rows
        self.size += size

    def _leave_out(self, serial: int, problem: str) -> None:
        if problem == EXPIRED:
            self.expired += 1
            return
        if problem == OVERSIZED:
            self.oversized += 1
        else:
            self.unreadable += 1
        self.example = f"{self.client_id} {serial} {problem}"

    def piece(self, *, head: bool) -> dict[str, Any]:
        """What has come since the piece before."""
        messages, self.messages = self.messages[::-1], []
        low = 0 if head else messages[0][1]
        row = {
            "client_id": self.client_id, "low": low, "high": self.high, "head": head, "messages": len(messages),
            "bytes": self.size, "released": sum(one[3] == RELEASED for one in messages), "packed": _packed(messages),
        }  # fmt: skip
        self.high, self.size = low - 1, 0
        if head:
            row |= {
                "expired": self.expired, "oversized": self.oversized, "unreadable": self.unreadable,
                "beyond_limit": self.beyond_limit, "repeated_ids": self.named - len(self.ids), "example": self.example,
                "last_packet_id": self.last_packet_id,
            }  # fmt: skip
        return row


def _packed(messages: Sequence[Row]) -> bytes:
    if not messages:
        return b""
    words = [word for _, serial, packet_id, state, until, value, _ in messages
             for word in (packet_id, serial, state, until, len(value or b""))]  # fmt: skip
    return b"".join((pack(f"<q{len(words)}q", len(messages), *words), *(row[5] or b"" for row in messages)))


def _plan(lists: Iterator[list[Row]], target: Target, limit: int) -> Iterator[pa.RecordBatch]:
    with Link(target.options) as link, without_collector():
        pieces: list[dict[str, Any]] = []
        size = 0
        for piece in _pieces(lists, limit):
            pieces.append(piece)
            size += piece["bytes"]
            if len(pieces) >= CLIENTS_TOGETHER or size >= BYTES_TOGETHER:
                yield _looked(link, target, pieces)
                pieces, size = [], 0
        if pieces:
            yield _looked(link, target, pieces)


def _pieces(lists: Iterator[list[Row]], limit: int) -> Iterator[dict[str, Any]]:
    client: _Client | None = None
    for rows in lists:
        for client_id, of in groupby(rows, key=itemgetter(0)):
            if client is None or client_id != client.client_id:
                if client is not None:
                    yield client.piece(head=True)
                client = _Client(client_id)
            run = list(of)
            if run[0][1] == OWN:
                yield from client.take(run[:1], limit)
                run = run[1:]
            if run:
                yield from client.take(run, limit)
    if client is not None:
        yield client.piece(head=True)


def _looked(link: Link, target: Target, pieces: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """The pieces as a batch; the heads say what there is of the session already."""
    heads = [piece for piece in pieces if piece["head"]]
    keys = [target.key(piece["client_id"]) for piece in heads]
    asked = [(key, command("SESSION.INFO", key)) for key in keys]
    asked += [(key, command("HEXISTS", key + b"_producers", target.producer())) for key in keys]
    replies = checked(link.ask_all(asked))
    for piece, told, ours in zip(heads, replies[: len(keys)], replies[len(keys) :], strict=True):
        info = as_map(told)
        piece |= {"connected": info[b"connected"] == 1, "held": info[b"messages"], "ours": bool(ours)}
    arrays = [pa.array([piece.get(one.name) for piece in pieces], one.type) for one in ARROW_PLANNED]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_PLANNED)
