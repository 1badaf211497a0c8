"""Those who get history through sessions, and the books of what each must be given.

    Follower    a session in order: an application (its place in history forever), or a subscription that begins in the
                past and becomes live in the step that has read the last message (the hand-off)
    Group       a shared subscription that begins in the past, with members that come, go and die

A message is known by its topic and its number there: 0, 1, 2 ... in the order of publishing.

What is checked while messages come:
    1. A follower gets each topic in order, each message once, but for what was trimmed before it came there.
    2. A group's message is acknowledged once, whoever of its members died with it unacknowledged.
    3. A primary that is lost takes back what its replica was not told: then, and only then, messages come again.
"""

import random
from collections.abc import Callable
from typing import Protocol

import redis

from holdmq import core
from tests.module.sessions_support import Session, matches
from tests.support import eventually

PAGE = 1000
FOR_EVER = 2**32 - 1  # the expiry of a session that has none
PATIENCE_S = 60.0

IsGone = Callable[[str, int], bool]


def message_of(value: bytes) -> tuple[str, int]:
    """Topic and number."""
    record = core.Record.decode(value)
    return record.topic.decode(), int(record.payload.split(b" ")[0])


class Consumer(Protocol):
    """Any of them."""

    def primary_was_lost(self) -> None:
        """What was given since the replica was told may come again."""

    def finish(self, client: redis.Redis, written: dict[str, int]) -> None:
        """Takes everything, which must be all that was written."""


class Follower:
    """A session that gets everything of a filter, in order.

    Args:
        key: the session key.
        topic_filter: what it subscribes to.
        application: whether it stays in history.
        is_gone: whether a message was trimmed.
    """

    def __init__(self, key: str, topic_filter: str, application: bool, is_gone: IsGone) -> None:
        self.topic_filter = topic_filter
        self.application = application
        self._key = key
        self._is_gone = is_gone
        self._next: dict[str, int] = {}
        self._may_repeat: set[str] = set()
        self._missed = self._absent = 0
        self.handed_over = 0

    def begin(self, client: redis.Redis, trimmed: int) -> None:
        """Subscribes from the earliest, again if it had; so many messages are trimmed already."""
        session = Session(client, self._key)
        session.drop()
        session.subscribe((self.topic_filter, "1@earliest!" if self.application else "1@earliest"))
        self._next.clear()
        self._may_repeat.clear()
        self._missed, self._absent = trimmed, 0

    def consume(self, client: redis.Redis, chance: random.Random) -> int:
        """Reads on, and takes some of what is queued; how many came."""
        return self._consume(client, *(chance.randrange(1, PAGE) for _ in range(4)))

    def finish(self, client: redis.Redis, written: dict[str, int]) -> None:
        """Takes everything, which must be all that was written."""
        while self._consume(client, PAGE, 10 * PAGE, PAGE, PAGE) > 0:
            pass
        for topic, count in written.items():
            if matches(self.topic_filter, topic):
                self._pass_over(topic, count)
        assert self._absent <= self._missed, f"{self._key}: {self._absent} did not come, {self._missed} are missed"
        lives = not client.exists(self._key + "_replays")
        assert lives is not self.application, f"{self._key}: at the end of history live {lives}"

    def primary_was_lost(self) -> None:
        """What came since the replica was told may come again."""
        self._may_repeat = set(self._next)

    def _consume(self, client: redis.Redis, count: int, visit: int, queue: int, most: int) -> int:
        session = Session(client, self._key)
        words = ("COUNT", count, "VISIT", visit, "QUEUE", queue)
        delivered, _, live, missed, _ = client.execute_command("SESSION.REPLAY", self._key, *words)
        self._missed += missed
        self.handed_over += live
        entries = session.fetch(count=most).entries
        for entry in entries:
            self.note(*message_of(entry.value))
        if entries:
            session.ack(*(entry.packet_id for entry in entries))
        return int(delivered) + len(entries)

    def note(self, topic: str, number: int) -> None:
        """It was given this message.

        Raises:
            AssertionError: it should not have been, or not yet.
        """
        assert matches(self.topic_filter, topic), f"{self._key}: {topic} is none of its topics"
        if number < self._next.get(topic, 0):
            assert topic in self._may_repeat, f"{self._key}: {topic} {number} came again, or behind a later one"
        else:
            self._pass_over(topic, number)
        self._may_repeat.discard(topic)
        self._next[topic] = number + 1

    def _pass_over(self, topic: str, number: int) -> None:
        skipped = range(self._next.get(topic, 0), number)
        lost = [one for one in skipped if not self._is_gone(topic, one)]
        assert not lost, f"{self._key}: {topic} {lost[:5]} (of {len(lost)}) did not come"
        self._absent += len(skipped)


class Group:
    """Members of a shared subscription.

    Args:
        topic_filter: what they share.
        is_gone: whether a message was trimmed.
    """

    def __init__(self, topic_filter: str, is_gone: IsGone) -> None:
        self.topic_filter = topic_filter
        self._share = f"$share/g/{topic_filter}"
        self._is_gone = is_gone
        self._members = [f"{{m{number}}}" for number in range(3)]
        self._acknowledged: dict[tuple[str, int], int] = {}
        self._losses = 0

    def begin(self, client: redis.Redis) -> None:
        """All come; also after a restart of the server."""
        for key in self._members:
            self._come(Session(client, key))

    def primary_was_lost(self) -> None:
        """What was acknowledged since the replica was told may come again."""
        self._losses += 1

    def step(self, client: redis.Redis, chance: random.Random) -> None:
        """One of them dies with what it was given, comes back or elsewhere, or takes something."""
        session = Session(client, chance.choice(self._members))
        connected = session.info()["connected"]
        match chance.randrange(6):
            case 0 if connected:
                session.fetch(count=PAGE, window=PAGE)  # in flight from now on
                session.close(int(session.info()["epoch"]))
            case 1 | 2:
                self._come(session)
            case _ if connected:
                self._take(session, chance.randrange(1, PAGE))

    def finish(self, client: redis.Redis, written: dict[str, int]) -> None:
        """All take everything, which must be all that was written."""
        self.begin(client)
        due = {
            (topic, number)
            for topic, count in written.items()
            if matches(self.topic_filter, topic)
            for number in range(count)
            if not self._is_gone(topic, number)
        }

        def take() -> bool:
            for key in self._members:
                self._take(Session(client, key), PAGE)
            return due <= self._acknowledged.keys()

        try:
            eventually(take, PATIENCE_S)
        except AssertionError:
            lacking = sorted(due - self._acknowledged.keys())
            raise AssertionError(f"{self._share}: {lacking[:5]} (of {len(lacking)}) did not come") from None

    def note(self, topic: str, number: int) -> None:
        """A member acknowledges this message.

        Raises:
            AssertionError: it was acknowledged before.
        """
        before = self._acknowledged.get((topic, number))
        assert before is None or before < self._losses, f"{self._share}: {topic} {number} was acknowledged before"
        self._acknowledged[topic, number] = self._losses

    def _come(self, session: Session) -> None:
        session.open("bridge", expiry=FOR_EVER)
        session.subscribe((self._share, "1@earliest"))

    def _take(self, session: Session, most: int) -> None:
        entries = session.fetch(count=most).entries
        for entry in entries:
            self.note(*message_of(entry.value))
        if entries:
            session.ack(*(entry.packet_id for entry in entries))
