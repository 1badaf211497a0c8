"""What the tasks of the job `migrate` do at the servers: looks at sessions, imports queues, opens sessions.

Invariants:
    1. A queue goes into a session by `SESSION.IMPORT`, in calls of at most `CALL_MESSAGES` messages and about
       `CALL_BYTES`, numbered 1, 2, 3 ... under the name of the migration: a task that is tried again, or a migration
       that is run again after a crash, stores nothing twice and goes on where it was.
    2. A session that has messages of others is refused (`NOTEMPTY`) by its first call, and then none of its further
       calls is sent, unless messages are to go behind what is there.
    3. Nobody is disconnected: a session that exists already is not opened anew.
    4. What is in memory is one call.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import redis

from holdmq import core
from holdmq_pipeline.options import Options
from holdmq_pipeline.tbmq import batch_of
from holdmq_pipeline.wire import Link, as_map

CALL_MESSAGES = 2000
CALL_BYTES = 4 << 20
MAX_TTL_MS = (2**31 - 1) * 1000
KEEPS_LIMIT = 65535
OWNER = "holdmq-migrate"

STATES = "client_id string, exists boolean, connected boolean, messages long, ours boolean"
ARROW_STATES = pa.schema(
    [("client_id", pa.string()), ("exists", pa.bool_()), ("connected", pa.bool_()), ("messages", pa.int64()),
     ("ours", pa.bool_())]
)  # fmt: skip
COUNTS = ("stored", "trimmed", "renumbered", "repeated", "late")
IMPORTED = "client_id string, stored long, trimmed long, renumbered long, repeated long, late long, problem string"
ARROW_IMPORTED = pa.schema(
    [
        ("client_id", pa.string()),
        *((name, pa.int64()) for name in COUNTS),
        ("problem", pa.string()),
    ]
)
OPENED = "client_id string, opened boolean, subscriptions long"
ARROW_OPENED = pa.schema([("client_id", pa.string()), ("opened", pa.bool_()), ("subscriptions", pa.int64())])


@dataclass(frozen=True, slots=True)
class Target:
    """Where the sessions go.

    Attributes:
        options: of the server; keyPrefix stands before the session keys.
        run: the name of this migration: the same one goes on with what was begun under it.
        merge: messages go behind what a session has already.
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


@dataclass
class _Queue:
    """The queue that is being imported: one client's; what was not sent yet, and what came of the rest."""

    client_id: str
    last_packet_id: int
    words: list[Any] = field(default_factory=list)
    count: int = 0
    size: int = 0
    calls: int = 0
    stored: int = 0
    trimmed: int = 0
    renumbered: int = 0
    repeated: int = 0
    late: int = 0
    problem: str | None = None

    def row(self) -> tuple[Any, ...]:
        return (self.client_id, self.stored, self.trimmed, self.renumbered, self.repeated, self.late, self.problem)


def look(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """What sessions there are of the clients (`client_id`): columns of `STATES`."""
    with Link(target.options) as link:
        for batch in batches:
            yield batch_of([_state(link, target, client_id) for client_id in batch.column(0).to_pylist()], ARROW_STATES)


def _state(link: Link, target: Target, client_id: str) -> tuple[Any, ...]:
    key = target.key(client_id)
    info = as_map(link.ask(key, "SESSION.INFO", key))
    ours = bool(link.ask(key, "HEXISTS", key + b"_producers", target.producer()))
    return client_id, info[b"exists"] == 1, info[b"connected"] == 1, info[b"messages"], ours


def import_queues(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """Imports queues: columns `client_id, serial, packet_id, state, lives_until, value, last_packet_id`.

    The rows of a client stand together, by serial. Yields columns of `IMPORTED`, a row for each client.
    """
    with Link(target.options) as link:
        queue: _Queue | None = None
        for batch in batches:
            done = []
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if queue is None or row[0] != queue.client_id:
                    if queue is not None:
                        done.append(_finish(link, target, queue))
                    queue = _Queue(row[0], row[6])
                _take(link, target, queue, row)
            yield batch_of(done, ARROW_IMPORTED)
        if queue is not None:
            yield batch_of([_finish(link, target, queue)], ARROW_IMPORTED)


def _take(link: Link, target: Target, queue: _Queue, row: Sequence[Any]) -> None:
    _, serial, packet_id, state, lives_until, value, _ = row
    if value is None or queue.problem:  # a client that has a packet identifier only, or was refused
        return
    left = min(lives_until - int(time.time() * 1000), MAX_TTL_MS) if lives_until else 0
    if lives_until and left <= 0:
        queue.late += 1
        return
    queue.words += [packet_id, serial, state, left, value]
    queue.count += 1
    queue.size += len(value)
    if queue.count == CALL_MESSAGES or queue.size >= CALL_BYTES:
        _send(link, target, queue)


def _finish(link: Link, target: Target, queue: _Queue) -> tuple[Any, ...]:
    if not queue.problem and (queue.count or (queue.last_packet_id and not queue.calls)):
        _send(link, target, queue)
    return queue.row()


def _send(link: Link, target: Target, queue: _Queue) -> None:
    """One call; a refusal is remembered, another error ends the task."""
    queue.calls += 1
    key = target.key(queue.client_id)
    merge = ["MERGE"] if target.merge or queue.calls > 1 else []
    last = ["LASTID", queue.last_packet_id] if queue.last_packet_id else []
    numbered = ["PRODUCER", target.producer(), queue.calls]
    head = ["SESSION.IMPORT", key, *merge, "LIMIT", KEEPS_LIMIT, *last, *numbered, "MESSAGES", queue.count]
    try:
        stored, _, _, changed, trimmed, new = link.ask(key, *head, *queue.words)[:6]
    except redis.ResponseError as error:
        if not str(error).startswith(("NOTEMPTY", "FULL")):
            raise
        queue.problem = str(error)
        return
    queue.stored += stored
    queue.trimmed += trimmed
    queue.renumbered += len(changed)
    queue.repeated += 0 if new else queue.count
    queue.words, queue.count, queue.size = [], 0, 0


def open_sessions(batches: Iterator[pa.RecordBatch], target: Target, subscriptions: bool) -> Iterator[pa.RecordBatch]:
    """Makes the sessions of clients: columns `client_id`, with subscriptions also `filters` (map of filter to QoS)."""
    with Link(target.options) as link:
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            filters = columns[1] if subscriptions else [None] * len(columns[0])
            rows = [
                _open(link, target, client_id, dict(given or ()))
                for client_id, given in zip(columns[0], filters, strict=True)
            ]
            yield batch_of(rows, ARROW_OPENED)


def _open(link: Link, target: Target, client_id: str, filters: Mapping[str, int]) -> tuple[str, bool, int]:
    key = target.key(client_id)
    new = as_map(link.ask(key, "SESSION.INFO", key))[b"exists"] != 1
    epoch = 0
    if new:
        epoch = link.ask(key, "SESSION.OPEN", key, "OWNER", OWNER, "EXPIRY", target.expiry_s)[0]
    if filters:
        words = [word for text, qos in sorted(filters.items()) for word in (text, _quiet(qos))]
        link.ask(key, "SESSION.SUBSCRIBE", key, "EPOCH", epoch, *words)
    if new:
        link.ask(key, "SESSION.CLOSE", key, "EPOCH", epoch, "EXPIRY", target.expiry_s)
    return client_id, new, len(filters)


def _quiet(qos: int) -> int:
    """Subscription options: this QoS, and no retained messages, which the client has had (retain handling 2)."""
    return qos | 2 << 4
