"""Publishes to topics in a cluster: every node gets each command, for the slots that it has (`SLOTS`).

    TOPIC.MPUBLISH PRODUCER id epoch after SLOTS n first last … RECORD number record …
    └ written here, for each node ───────────────────────────┘ └ as it was packed, the same bytes for all ┘

Invariants:

1. A command is sent to all nodes at the same time, each slot to one of them. The next command follows when every slot
   has been served. A slot that was not served (it was moving, or its node was lost) is requested again at its new node.
2. A writer begins by reading from `{id}_producer` up to which number the producer's messages are in all slots, and
   skips those. That number is noted (TOPIC.COMMIT) when everything has been served. Until then each slot has a note of
   its own.
3. Retries end: a slot that is not served for `PATIENCE_S` is an error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import TryAgainError

from holdmq import core
from holdmq.commands import SLOTS, SlotRange, for_slots, topic_commit
from holdmq.replies import ProducerChunk
from holdmq.slots import gaps, node_at, overlaps, owners
from holdmq_pipeline.errors import PipelineError
from holdmq_pipeline.wire import PASSING, Link, Patience, patiently, patiently_between, received, text_at

__all__ = ["Everywhere", "Publication"]

HEAD_BYTES = 1024
"""More than all words before the messages have (an id has at most 255 bytes)."""
ALL_SLOTS = (SlotRange(0, SLOTS - 1),)


@dataclass(frozen=True)
class Publication:
    """A packed TOPIC.MPUBLISH, taken apart.

    Attributes:
        words: those before RECORD.
        messages: the arguments after RECORD, packed.
        arguments: how many these are.
    """

    words: tuple[bytes, ...]
    messages: memoryview
    arguments: int

    @classmethod
    def of(cls, command: memoryview) -> "Publication":
        """The parts of a command as holdmq.core.batch packs it."""
        head = bytes(command[:HEAD_BYTES])
        at = head.index(b"\r\n") + 2
        total = int(head[1 : at - 2])
        words: list[bytes] = []
        while not words or words[-1] != b"RECORD" or len(words) not in {2, 6}:
            word, at = text_at(head, at)
            words.append(word)
        return cls(tuple(words[:-1]), command[at:], total - len(words))

    def head(self, ranges: Sequence[SlotRange]) -> bytes:
        """All arguments before the messages, for these slots."""
        ends = [b"%d" % end for part in ranges for end in (part.first, part.last)]
        words = (*self.words, b"SLOTS", b"%d" % len(ranges), *ends, b"RECORD")
        packed = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        return b"*%d\r\n%s" % (len(words) + self.arguments, packed)

    def after(self, number: int) -> "Publication":
        """The publication without the messages up to this number."""
        packed, at, left = bytes(self.messages), 0, self.arguments
        while left:
            own, record = text_at(packed, at)
            if int(own) > number:
                break
            _record, at = text_at(packed, record)
            left -= 2
        return replace(self, messages=self.messages[at:], arguments=left)


class Everywhere:
    """Publishes the commands of a task.

    Args:
        link: to a cluster.
        idempotent: whether a command may be sent again when its outcome is not known.

    Attributes:
        stored: rows of commands that changed something.
        repeated: rows that all nodes had already.
    """

    def __init__(self, link: Link, *, idempotent: bool) -> None:
        self._link = link
        self._idempotent = idempotent
        self._connections: dict[str, Any] = {}
        self._owners: list[tuple[SlotRange, Any]] = []  # empty: to be asked for
        self._now: Publication | None = None  # on its way
        self._rows = 0
        self._asked: list[tuple[Any, list[SlotRange]]] = []
        self._left: list[SlotRange] = []  # could not be sent
        self._published = self._known = 0
        self._progress: dict[bytes, tuple[int, int, int]] = {}  # producer: epoch, number before, number now
        self.stored = 0
        self.repeated = 0

    def publish(self, command: memoryview, rows: int, number: tuple[bytes, bytes] | None) -> None:
        """Sends a command once the one before is on all nodes.

        Args:
            command: TOPIC.MPUBLISH, packed.
            rows: how many messages it has.
            number: its producer and the number of its last message; None: it has none.

        Raises:
            PipelineError: a node refused the one before, or slots were not served for too long.
        """
        publication = Publication.of(command)
        if number is not None:
            before = self._before(number[0], int(publication.words[3]))
            self._progress[number[0]] = (int(publication.words[3]), before, max(before, int(number[1])))
            publication = publication.after(before) if before else publication
        left = publication.arguments // (2 if number is not None else 1)
        self.repeated += rows - left
        self._wait()
        if left:
            self._now, self._rows, self._published, self._known = publication, left, 0, 0
            self._send(ALL_SLOTS)

    def finish(self) -> None:
        """Waits for the last command, and notes that all messages are on all nodes.

        Raises:
            PipelineError: as of `publish`.
        """
        self._wait()
        for producer, (epoch, before, number) in self._progress.items():
            if number > before:
                self._commit(producer, epoch, number)

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections.values():
            connection.disconnect()
        self._connections = {}

    # ---- what is known everywhere

    def _before(self, producer: bytes, epoch: int) -> int:
        """The number up to which all nodes had the messages at the beginning."""
        if producer in self._progress:
            return self._progress[producer][1]
        key = _note_key(producer)
        noted = self._link.ask(key, "GET", key)
        of, number = map(int, noted.split()) if noted else (0, 0)
        if of > epoch:
            raise PipelineError(
                f"the epoch of producer {producer.decode()} is {of} by now; expected {epoch} or less: another writer "
                "has continued, so this is not published any more"
            )
        return number if of == epoch else 0

    def _commit(self, producer: bytes, epoch: int, number: int) -> None:
        """Notes it, and lets the notes of the slots end when that has been done."""
        key = _note_key(producer)
        slot = core.slot_of(key)
        commit = topic_commit(ProducerChunk(producer, epoch, number))
        here, everywhere = for_slots(commit, [SlotRange(slot, slot)]), for_slots(commit, ALL_SLOTS)

        def once() -> None:
            noted, _ended = here.parse(self._link.node(key).execute_command(*here.words, **here.options)).value
            if not noted:
                raise TryAgainError(f"slot {slot} is on its way")

        def at_all_nodes() -> None:
            for node in self._link.primaries():
                everywhere.parse(node.execute_command(*everywhere.words, **everywhere.options))

        patiently(once, self._link.forget)
        patiently(at_all_nodes, self._link.forget)

    # ---- one command

    def _wait(self) -> None:
        """Waits until the unanswered command has been served in all slots."""
        if self._now is None:
            return
        patience = Patience()
        left = self._take()
        while left:
            if not all(part.address for part in left):
                if not patience.wait():
                    raise PipelineError(
                        f"slots {left[0].first} to {left[0].last} were not served for too long; expected a node that "
                        "has them"
                    )
                patiently_between(self._link.forget)
                self._owners = []
            self._send(left)
            left = self._take()
        self._now = None
        if self._known and not self._published:
            self.repeated += self._rows
        else:
            self.stored += self._rows

    def _send(self, ranges: Iterable[SlotRange]) -> None:
        """To the nodes that have these slots, as far as is known."""
        assert self._now is not None
        for node, own in self._by_node(ranges):
            try:
                self._connection(node).send_packed_command([self._now.head(own), self._now.messages])
            except PASSING as error:
                self._lose(node, own, error)
            else:
                self._asked.append((node, own))

    def _take(self) -> list[SlotRange]:
        """The replies; the slots that were not served.

        Raises:
            PipelineError: a node refused the command.
        """
        asked, self._asked = self._asked, []
        refusals: list[Exception] = []
        for node, own in asked:
            try:
                reply = received(self._connection(node), 1)[0]
            except PASSING as error:
                self._lose(node, own, error)
                continue
            if isinstance(reply, PASSING):
                self._left += _anywhere(own)
            elif isinstance(reply, Exception):
                refusals.append(reply)
            else:
                (published, known, _reached), unserved = reply
                self._published += published
                self._known += known
                self._left += [SlotRange(first, last, address.decode()) for first, last, address in unserved]
        if refusals:
            self._now = None
            raise PipelineError(f"a node refused to publish: {refusals[0]}") from refusals[0]
        left, self._left = self._left, []
        return left

    def _lose(self, node: Any, own: Sequence[SlotRange], error: Exception) -> None:
        """The connection is gone: whether the command was executed is not known."""
        connection = self._connections.pop(node.name, None)
        if connection is not None:
            connection.disconnect()
        if not self._idempotent:
            raise PipelineError(
                f"the connection to {node.name} was lost ({error}), so what was published of the last messages is not "
                "known; expected idempotent=true for a write that continues after that"
            ) from error
        self._left += _anywhere(own)

    # ---- nodes

    def _connection(self, node: Any) -> Any:
        connection = self._connections.get(node.name)
        if connection is None:
            pool = self._link.hold.client.get_redis_connection(node).connection_pool
            connection = self._connections[node.name] = pool.make_connection()
            connection.connect()
        return connection

    def _by_node(self, ranges: Iterable[SlotRange]) -> list[tuple[Any, list[SlotRange]]]:
        """The slots by the node to ask; those without a node are left."""
        cluster = self._link.hold.client
        if not self._owners:
            self._owners = list(owners(cluster.nodes_manager.slots_cache))
        by_node: dict[str, tuple[Any, list[SlotRange]]] = {}
        for part in ranges:
            known = node_at(cluster, part.address)
            pieces = [(part, known)] if known is not None else overlaps(part, self._owners)
            for piece, node in pieces:
                by_node.setdefault(node.name, (node, []))[1].append(piece)
            self._left += gaps(part, [piece for piece, _node in pieces])
        return list(by_node.values())


def _anywhere(ranges: Iterable[SlotRange]) -> list[SlotRange]:
    """The slots, at their present nodes."""
    return [replace(part, address="") for part in ranges]


def _note_key(producer: bytes) -> bytes:
    """The key of the note up to which number all nodes know a producer."""
    return core.session_key(producer) + b"_producer"
