"""Sends chunks of commands and checks every reply.

One server: while one chunk is unanswered, the next is packed. When the connection is lost, the chunk is sent again from
its beginning. The commands name their producers, so messages that had been stored are not stored again. Without
producers (idempotent=false) the error goes to Spark.

A cluster: the commands of a chunk go to the nodes of their keys, those of one key one after the other. A chunk begins
when the one before is complete. So a command that has to be repeated, because its slot moved, never follows a later one
of the same key. Publishes to topics go to all nodes (everywhere.py).

A refused command (memory, a full session ...) is the task's error. Unanswered later commands of the same producer, to
the same session or channel (following.py) or to topics, are refused with it (GAP), and a retry continues there. A gap
after a stored command means that the session was dropped in the meantime, or that its state of the producer has
expired. A retry cannot repair that.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from pyspark.sql.datasource import WriterCommitMessage

from holdmq_pipeline.errors import PipelineError
from holdmq_pipeline.everywhere import Everywhere
from holdmq_pipeline.following import without_after
from holdmq_pipeline.messages import Chunk
from holdmq_pipeline.options import Options
from holdmq_pipeline.wire import PASSING, Link, patiently, received

__all__ = ["Sender", "Written"]


@dataclass
class Written(WriterCommitMessage):
    """The results of a task.

    Attributes:
        rows: that it saw.
        stored: that the server accepted.
        repeated: that the server had from an attempt before.
        expired: that were past their expiry and left out.
        trimmed: older messages of sessions that made room.
    """

    rows: int = 0
    stored: int = 0
    repeated: int = 0
    expired: int = 0
    trimmed: int = 0


class Pace:
    """Keeps to a number of rows a second, over the time since it began."""

    def __init__(self, rows_per_second: int | None) -> None:
        self._rate = rows_per_second
        self._begun = time.monotonic()
        self._rows = 0

    def wait(self, rows: int) -> None:
        """Waits until this many more may be sent."""
        if self._rate is None:
            return
        ahead = self._rows / self._rate - (time.monotonic() - self._begun)
        if ahead > 0:
            time.sleep(ahead)
        self._rows += rows


class Sender:
    """Sends the chunks of a task.

    Args:
        link: to the servers.
        options: of the write.
    """

    def __init__(self, link: Link, options: Options) -> None:
        self._link = link
        self._target = options.text("table")
        self._idempotent = options.flag("idempotent")
        self._pace = Pace(options.number("maxRowsPerSecond"))
        self._written = Written()
        self._connection: Any = None
        self._waiting: Chunk | None = None
        spread = link.is_cluster and self._target == "topics"
        self._everywhere = Everywhere(link, idempotent=self._idempotent) if spread else None

    def send(self, chunk: Chunk) -> None:
        """Sends a chunk, and takes the replies of the one before."""
        self._written.expired += chunk.expired
        self._written.rows += chunk.expired + sum(chunk.rows)
        if not len(chunk):
            return
        self._pace.wait(sum(chunk.rows))
        if self._everywhere is not None:
            for at, rows in enumerate(chunk.rows):
                self._everywhere.publish(chunk.packed(at), rows, chunk.number(at))
            return
        if self._link.is_cluster:
            self._take([(chunk, self._scatter(chunk))])
            return
        before = self._waiting
        self._waiting = chunk
        try:
            self._transmit(chunk)
            if before is not None:
                self._take([(before, self._receive(before))])
        except PASSING:
            self._repeat([one for one in (before, chunk) if one is not None])

    def finish(self) -> Written:
        """Takes the last replies."""
        if self._everywhere is not None:
            self._everywhere.finish()
            self._written.stored = self._everywhere.stored
            self._written.repeated = self._everywhere.repeated
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            try:
                self._take([(waiting, self._receive(waiting))])
            except PASSING:
                self._repeat([waiting])
        self.close()
        return self._written

    def close(self) -> None:
        """Closes the connections."""
        if self._everywhere is not None:
            self._everywhere.close()
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    # ---- one server

    def _transmit(self, chunk: Chunk) -> None:
        if self._connection is None:
            self._connection = self._link.connection_to(b"")
        self._connection.send_packed_command([chunk.data])

    def _receive(self, chunk: Chunk) -> list[Any]:
        """A reply for each command; errors of the server are among them."""
        return received(self._connection, len(chunk))

    def _repeat(self, chunks: Sequence[Chunk]) -> None:
        """Sends everything again after a lost connection, which stores nothing twice."""
        self._waiting = None
        if not self._idempotent:
            self.close()
            raise PipelineError(
                "the connection was lost, so what was stored of the last messages is not known; expected "
                "idempotent=true for a write that continues after that"
            )

        def again(chunk: Chunk) -> list[Any]:
            self.close()
            self._transmit(chunk)
            return self._receive(chunk)

        for chunk in chunks:
            self._take([(chunk, patiently(lambda: again(chunk)))])  # noqa: B023 - called before the next turn

    # ---- a cluster

    def _scatter(self, chunk: Chunk) -> list[Any]:
        """The commands at the nodes of their keys; those of one key one after the other."""
        keys = [chunk.key(at) for at in range(len(chunk))]
        replies: list[Any] = [None] * len(chunk)
        waves: list[list[int]] = []
        seen: dict[bytes, int] = {}
        for at, key in enumerate(keys):
            wave = seen.get(key, -1) + 1
            seen[key] = wave
            if wave == len(waves):
                waves.append([])
            waves[wave].append(at)
        for wave_of in waves:
            by_node: dict[Any, list[int]] = {}
            for at in wave_of:
                by_node.setdefault(self._link.node(keys[at]), []).append(at)
            for node, own in by_node.items():
                self._ask_node(node, chunk, own, replies)
        return replies

    def _ask_node(self, node: redis.Redis, chunk: Chunk, own: Sequence[int], replies: list[Any]) -> None:
        try:
            with self._link.connection(node) as connection:
                connection.send_packed_command([b"".join(chunk.command(at) for at in own)])
                found = received(connection, len(own))
        except PASSING:
            if not self._idempotent:
                raise
            found = [redis.exceptions.TryAgainError()] * len(own)
        for at, reply in zip(own, found, strict=True):
            replies[at] = self._ask_again(chunk, at) if isinstance(reply, PASSING) else reply

    def _ask_again(self, chunk: Chunk, at: int) -> Any:
        """Sends one command whose slot is moving, until the slot has settled."""

        def once() -> Any:
            with self._link.connection(self._link.node(chunk.key(at))) as connection:
                connection.send_packed_command([chunk.command(at)])
                reply = received(connection, 1)[0]
            if isinstance(reply, PASSING):
                raise reply
            return reply

        self._link.forget()
        return patiently(once, self._link.forget)

    # ---- replies

    def _take(self, answered: Sequence[tuple[Chunk, list[Any]]]) -> None:
        """Counts what was stored.

        Raises:
            PipelineError: the server refused a command.
        """
        refused: list[Exception] = []
        gaps: list[tuple[Chunk, int]] = []
        for chunk, replies in answered:
            for at, reply in enumerate(replies):
                if not isinstance(reply, Exception):
                    self._count(chunk.rows[at], reply)
                elif str(reply).startswith("GAP ") and self._target != "topics":
                    gaps.append((chunk, at))
                else:
                    refused.append(reply)
        if gaps and not refused:
            refused = self._follow_nothing(gaps)
        if refused:
            self.close()
            raise PipelineError(
                f"the server refused {len(refused)} commands, the first with: {refused[0]}"
            ) from refused[0]

    def _follow_nothing(self, gaps: Sequence[tuple[Chunk, int]]) -> list[Exception]:
        """Sends what follows something that is gone; the first of each session does not say so. What was refused."""
        seen: set[bytes] = set()
        asked = []
        for chunk, at in gaps:
            key, command = chunk.key(at), chunk.command(at)
            asked.append((key, command if key in seen else without_after(command)))
            seen.add(key)
        refused = []
        for (chunk, at), reply in zip(gaps, self._link.ask_all(asked), strict=True):
            if isinstance(reply, Exception):
                refused.append(reply)
            else:
                self._count(chunk.rows[at], reply)
        return refused

    def _count(self, rows: int, reply: Any) -> None:
        if self._target == "sessions":
            identifiers, _last, trimmed, _expired = reply
            self._written.trimmed += trimmed
            self._written.stored += len(identifiers)
            self._written.repeated += rows - len(identifiers)
        elif self._target == "topics":
            published, known, _reached = reply
            self._written.stored += published
            self._written.repeated += known
        elif reply == -1:
            self._written.repeated += 1
        else:
            self._written.stored += 1
