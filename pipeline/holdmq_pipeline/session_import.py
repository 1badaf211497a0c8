"""What the tasks of the job `migrate` write: queues of sessions, and the sessions themselves.

Invariants:
    1. A queue is stored by `SESSION.IMPORT`, with a call for each piece of the plan. Its number, under the name of the
       migration, is the serial of its last message: a repeated task stores nothing twice. Before the first call for a
       queue, the number of the last call is read. So a migration that is run again, with other pieces because messages
       have expired in the meantime, continues after that message.
    2. A session with messages of others is refused (`NOTEMPTY`) at its first call, and none of its further calls is
       sent, unless messages are to be appended to existing ones.
    3. No client is disconnected: an existing session is not opened again.
    4. Calls of different clients are sent together, those of one client one after the other. Memory holds one turn:
       `BYTES_TOGETHER` and a piece.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import redis

from holdmq_pipeline.history_reader import without_collector
from holdmq_pipeline.session_plan import BYTES_TOGETHER, CLIENTS_TOGETHER, Renamer, Target, Waiting, unpacked
from holdmq_pipeline.wire import Link, as_map, checked, command

MAX_TTL_MS = (2**31 - 1) * 1000
KEEPS_LIMIT = 65535
OWNER = "holdmq-migrate"
REFUSALS = ("NOTEMPTY", "FULL")

TO_IMPORT = ("client_id", "head", "conflict", "last_packet_id", "repeated_ids", "packed")
COUNTS = ("stored", "trimmed", "renumbered", "repeated", "late", "opened")
IMPORTED = ", ".join(f"{name} long" for name in COUNTS) + ", problem string"
ARROW_IMPORTED = pa.schema([*((name, pa.int64()) for name in COUNTS), ("problem", pa.string())])
OPENED = "opened long, subscriptions long"
ARROW_OPENED = pa.schema([("opened", pa.int64()), ("subscriptions", pa.int64())])


@dataclass
class _Queue:
    """A client whose pieces come."""

    key: bytes
    client_id: str
    last_packet_id: int
    renamer: Renamer | None
    calls: int = 0
    skip: bool = False
    last_present: int = -1
    """The serial of the last message that is there from a run before."""


@dataclass
class _Totals:
    """What a task did."""

    stored: int = 0
    trimmed: int = 0
    renumbered: int = 0
    repeated: int = 0
    late: int = 0
    opened: int = 0
    problem: str | None = None


def import_queues(batches: Iterator[pa.RecordBatch], target: Target, *, opens: bool) -> Iterator[pa.RecordBatch]:
    """Imports pieces: columns `TO_IMPORT`, in the order of the plan; with `opens` makes the sessions, too.

    Yields a row with columns of `IMPORTED`.
    """
    totals = _Totals()
    with Link(target.options) as link, without_collector():
        work = _Work(link, target, totals, opens)
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                work.take(*row)
        work.finish()
    arrays = [pa.array([getattr(totals, one.name)], one.type) for one in ARROW_IMPORTED]
    yield pa.RecordBatch.from_arrays(arrays, schema=ARROW_IMPORTED)


class _Work:
    """Pieces that come in order, taken in turns: one piece each of some clients."""

    def __init__(self, link: Link, target: Target, totals: _Totals, opens: bool) -> None:
        self._link, self._target, self._totals, self._opens = link, target, totals, opens
        self._queue: _Queue | None = None
        self._turn: list[tuple[_Queue, bytes]] = []
        self._size = 0
        self._whole: list[_Queue] = []  # all their pieces have come

    def take(
        self, client_id: str, head: bool, conflict: bool, last_packet_id: int, repeated_ids: int, packed: bytes
    ) -> None:
        """A row."""
        if self._turn and (not head or len(self._turn) == CLIENTS_TOGETHER or self._size >= BYTES_TOGETHER):
            self._take_turn()
        if head or self._queue is None:
            if self._queue is not None:
                self._whole.append(self._queue)
            renamer = Renamer() if repeated_ids else None
            self._queue = _Queue(self._target.key(client_id), client_id, last_packet_id or 0, renamer, skip=conflict)
        if not self._queue.skip:
            self._turn.append((self._queue, packed))
            self._size += len(packed)

    def finish(self) -> None:
        """Nothing more comes."""
        if self._queue is not None:
            self._whole.append(self._queue)
        self._take_turn()

    def _take_turn(self) -> None:
        turn, self._turn, self._size = self._turn, [], 0
        _take_turn(self._link, self._target, turn, self._totals)
        whole, self._whole = self._whole, []
        if self._opens:
            wanted = [(queue.key, dict[str, int]()) for queue in whole if not queue.skip]
            self._totals.opened += _open(self._link, self._target, wanted)[0]


def _take_turn(link: Link, target: Target, turn: Sequence[tuple[_Queue, bytes]], totals: _Totals) -> None:
    """A piece each of some clients."""
    new = [queue for queue, _ in turn if not queue.calls]
    asked = [(queue.key, command("HGET", queue.key + b"_producers", target.producer())) for queue in new]
    for queue, line in zip(new, checked(link.ask_all(asked)), strict=True):
        queue.last_present = int(line.split(b" ", 1)[0]) - 1 if line else -1
    calls = []
    for queue, packed in turn:
        messages = unpacked(packed)
        call = _call(target, queue, queue.renamer.of(messages) if queue.renamer else messages, totals)
        if call is not None:
            calls.append((queue, *call))
    replies = link.ask_all([(queue.key, words) for queue, words, _ in calls])
    for (queue, _, count), reply in zip(calls, replies, strict=True):
        _count(queue, count, reply, totals)


def _call(target: Target, queue: _Queue, messages: Sequence[Waiting], totals: _Totals) -> tuple[bytes, int] | None:
    """The command, and how many messages it has; None: there is nothing to store."""
    now_ms = int(time.time() * 1000)
    words: list[Any] = []
    for packet_id, serial, state, lives_until, value in messages:
        if serial <= queue.last_present:
            totals.repeated += 1
        elif not lives_until:
            words += (packet_id, serial, state, 0, value)
        elif lives_until <= now_ms:
            totals.late += 1
        else:
            words += (packet_id, serial, state, min(lives_until - now_ms, MAX_TTL_MS), value)
    count = len(words) // 5
    if not count and (queue.calls or queue.last_present >= 0 or not queue.last_packet_id):
        return None
    queue.calls += 1
    merge = ["MERGE"] if target.merge or queue.calls > 1 or queue.last_present >= 0 else []
    last = ["LASTID", queue.last_packet_id] if queue.last_packet_id else []
    number = 1 + (messages[-1].serial if messages else 0)
    numbered = ["PRODUCER", target.producer(), number]
    head = ["SESSION.IMPORT", queue.key, *merge, "LIMIT", KEEPS_LIMIT, *last, *numbered, "MESSAGES", count]
    return command(*head, *words), count


def _count(queue: _Queue, count: int, reply: Any, totals: _Totals) -> None:
    """What came of a call; a refusal is remembered, another error ends the task."""
    if isinstance(reply, redis.ResponseError) and str(reply).startswith(REFUSALS):
        queue.skip = True
        totals.problem = totals.problem or f"client {queue.client_id}: {reply}"
        return
    if isinstance(reply, Exception):
        raise reply
    stored, _, _, changed, trimmed, new = reply[:6]
    totals.stored += stored
    totals.trimmed += trimmed
    totals.renumbered += len(changed)
    totals.repeated += 0 if new else count


# ---- the sessions ----


def open_sessions(batches: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """Makes the sessions of clients: columns `client_id`, `filters` (map of filter to QoS, or null)."""
    with Link(target.options) as link:
        for batch in batches:
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            wanted = [(target.key(client_id), dict(filters or ())) for client_id, filters in rows]
            turns = range(0, len(wanted), CLIENTS_TOGETHER)
            done = [_open(link, target, wanted[at : at + CLIENTS_TOGETHER]) for at in turns]
            made = [pa.array([one[i] for one in done], pa.int64()) for i in range(2)]
            yield pa.RecordBatch.from_arrays(made, schema=ARROW_OPENED)


def _open(link: Link, target: Target, wanted: Sequence[tuple[bytes, Mapping[str, int]]]) -> tuple[int, int]:
    """Opens and closes those that are not there, and subscribes; how many of both."""

    def each(commands: Sequence[tuple[bytes, Sequence[Any]]]) -> list[Any]:
        return checked(link.ask_all([(key, command(words[0], key, *words[1:])) for key, words in commands]))

    keys = [key for key, _ in wanted]
    known = each([(key, ("SESSION.INFO",)) for key in keys])
    new = [key for key, told in zip(keys, known, strict=True) if as_map(told)[b"exists"] != 1]
    opened = each([(key, ("SESSION.OPEN", "OWNER", OWNER, "EXPIRY", target.expiry_s)) for key in new])
    epochs = {key: reply[0] for key, reply in zip(new, opened, strict=True)}
    subscribed = [
        (key, ("SESSION.SUBSCRIBE", "EPOCH", epochs.get(key, 0), *_words(filters)))
        for key, filters in wanted
        if filters
    ]
    each(subscribed)
    each([(key, ("SESSION.CLOSE", "EPOCH", epoch, "EXPIRY", target.expiry_s)) for key, epoch in epochs.items()])
    return len(new), sum(len(filters) for _, filters in wanted)


def _words(filters: Mapping[str, int]) -> list[Any]:
    return [word for text, qos in sorted(filters.items()) for word in (text, _quiet(qos))]


def _quiet(qos: int) -> int:
    """Subscription options: this QoS, and no retained messages, which the client has had (retain handling 2)."""
    return qos | 2 << 4
