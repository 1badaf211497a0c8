"""What the tests of sessions and topics share: typed replies, inboxes, the keyspace as a value, a matcher.

    session = Session(client, "{c}")
    assert session.add(b"m").packet_ids == [1]
    with unchanged(client): ...
    assert_routes_exactly(client, ["a/b", "$x"])

Nothing here looks behind the commands except `snapshot`, which reads plain keys with stock commands.
"""

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import redis

from holdmq import core
from tests.support import RawClient, Server, eventually

MAX_PACKET_ID = 65535
DEFAULT_TTL_S = 604800
SUBSCRIPTIONS = b"_subscriptions"
PAGE = 1000
GIVES_BACK = "are moving to other members of its groups; try again"
SESSION_KEY = re.compile(rb"[^{]*\{[^{}]+\}", re.DOTALL)

_tokens = itertools.count(1)


class Added(NamedTuple):
    """Reply of SESSION.ADD."""

    packet_ids: list[int]
    serial: int
    trimmed: int
    expired: int


class Entry(NamedTuple):
    """One message of a page of SESSION.FETCH."""

    serial: int
    packet_id: int
    state: int
    value: bytes


@dataclass(frozen=True)
class Will:
    """The will of a session, as SESSION.OPEN takes it."""

    topic: str = "will"
    payload: str | bytes = "gone"
    qos: int = 1
    retain: bool = False
    delay: int | None = None
    ttl: int | None = None
    properties: bytes | None = None

    @property
    def words(self) -> list[str | bytes | int]:
        """The options."""
        words: list[str | bytes | int] = ["WILL", self.topic, self.payload, "WILLQOS", self.qos]
        words += ["WILLRETAIN"] if self.retain else []
        words += _options(WILLDELAY=self.delay, WILLTTL=self.ttl)
        return words + (["WILLPROPERTIES", self.properties] if self.properties is not None else [])


@dataclass(frozen=True)
class Page:
    """Reply of SESSION.FETCH."""

    entries: list[Entry]
    more: int
    expired: int

    @property
    def values(self) -> list[bytes]:
        """The payloads, oldest first."""
        return [entry.value for entry in self.entries]

    @property
    def packet_ids(self) -> list[int]:
        """The packet identifiers, oldest first."""
        return [entry.packet_id for entry in self.entries]

    @property
    def states(self) -> list[int]:
        """The states, oldest first: 0 queued, 1 in flight, 2 released."""
        return [entry.state for entry in self.entries]

    @property
    def serials(self) -> list[int]:
        """The serials, oldest first."""
        return [entry.serial for entry in self.entries]


class Opened(NamedTuple):
    """Reply of SESSION.OPEN."""

    epoch: int
    present: int


class Session:
    """The commands of one session.

    Args:
        client: where it lives.
        key: the session key.
    """

    def __init__(self, client: redis.Redis, key: str | bytes = "{c}") -> None:
        self.client = client
        self.key = key.encode() if isinstance(key, str) else key

    def name(self, suffix: str) -> bytes:
        """The name of a key of the session, `messages` for one."""
        return self.key + b"_" + suffix.encode()

    def message(self, packet_id: int) -> bytes:
        """The name of the key of a message."""
        return self.name(f"messages_{packet_id}")

    def add(self, *payloads: bytes | str, limit: int | None = None, ttl: int | None = None) -> Added:
        """SESSION.ADD, the payloads after MESSAGES."""
        options = _options(LIMIT=limit, TTL=ttl)
        return Added(*self._call("SESSION.ADD", *options, "MESSAGES", *payloads))

    def add_expiring(self, *pairs: tuple[int | str, bytes | str], limit: int | None = None) -> Added:
        """SESSION.ADD, pairs of seconds and payload after EXPIRING."""
        flat = [part for pair in pairs for part in pair]
        return Added(*self._call("SESSION.ADD", *_options(LIMIT=limit), "EXPIRING", *flat))

    def add_once(self, producer: str | bytes, sequence: int, *payloads: bytes | str, limit: int | None = None) -> Added:
        """SESSION.ADD with PRODUCER."""
        options = _options(LIMIT=limit)
        return Added(*self._call("SESSION.ADD", *options, "PRODUCER", producer, sequence, "MESSAGES", *payloads))

    def fetch(
        self,
        *,
        epoch: int | None = None,
        after: int | None = None,
        count: int | None = None,
        size: int | None = None,
        window: int | None = None,
        in_flight: bool = False,
    ) -> Page:
        """SESSION.FETCH; `size` is its BYTES."""
        options = _options(EPOCH=epoch, AFTER=after, COUNT=count, BYTES=size, WINDOW=window)
        return _page(self._call("SESSION.FETCH", *options, *(["INFLIGHT"] if in_flight else [])))

    def fetch_all(self) -> list[Entry]:
        """Everything queued, over as many pages as it takes."""
        entries: list[Entry] = []
        while True:
            page = self.fetch(after=entries[-1].serial if entries else 0, count=PAGE)
            entries += page.entries
            if not page.more:
                return entries

    def ack(self, *packet_ids: int, epoch: int | None = None) -> int:
        """SESSION.ACK."""
        return int(self._call("SESSION.ACK", *_options(EPOCH=epoch), *packet_ids))

    def ack_next(self, count: int, *packet_ids: int, epoch: int | None = None) -> tuple[int, Page]:
        """SESSION.ACK with NEXT."""
        removed, page = self._call("SESSION.ACK", *_options(EPOCH=epoch, NEXT=count), *packet_ids)
        return removed, _page(page)

    def sent(self, serial: int, epoch: int | None = None, window: int | None = None) -> bytes:
        """SESSION.SENT."""
        return bytes(self._call("SESSION.SENT", *_options(EPOCH=epoch, WINDOW=window), serial))

    def release(self, *packet_ids: int, epoch: int | None = None) -> int:
        """SESSION.RELEASE."""
        return int(self._call("SESSION.RELEASE", *_options(EPOCH=epoch), *packet_ids))

    def receive(self, packet_id: int, epoch: int | None = None) -> int:
        """SESSION.RECEIVE."""
        return int(self._call("SESSION.RECEIVE", *_options(EPOCH=epoch), packet_id))

    def complete(self, *packet_ids: int, epoch: int | None = None) -> int:
        """SESSION.COMPLETE."""
        return int(self._call("SESSION.COMPLETE", *_options(EPOCH=epoch), *packet_ids))

    def last(self) -> int:
        """SESSION.LAST."""
        return int(self._call("SESSION.LAST"))

    def info(self) -> dict[str, Any]:
        """SESSION.INFO."""
        return {name.decode(): value for name, value in self._call("SESSION.INFO").items()}

    def drop(self, epoch: int | None = None) -> int:
        """SESSION.DROP."""
        return int(self._call("SESSION.DROP", *_options(EPOCH=epoch)))

    def open(
        self,
        owner: str = "bridge-1",
        *,
        clean: bool = False,
        expiry: int | None = None,
        lease: int | None = None,
        window: int | None = None,
        will: "Will | None" = None,
    ) -> Opened:
        """SESSION.OPEN; again, as clients do it, while what the session gives back is on its way."""
        options = ["OWNER", owner, *(["CLEAN"] if clean else []), *_options(EXPIRY=expiry, LEASE=lease)]
        options += _options(WINDOW=window)

        def once() -> Opened | None:
            try:
                return Opened(*self._call("SESSION.OPEN", *options, *(will.words if will else [])))
            except redis.exceptions.TryAgainError as error:
                if GIVES_BACK not in str(error):
                    raise
                return None

        return eventually(once, what="the end of what the session gives back")

    def touch(self, epoch: int) -> bytes:
        """SESSION.TOUCH."""
        reply = self._call("SESSION.TOUCH", "EPOCH", epoch)
        assert isinstance(reply, bytes)
        return reply

    def close(self, epoch: int, expiry: int | None = None, sent: int | None = None, *, will: bool = False) -> bytes:
        """SESSION.CLOSE."""
        options = [*_options(EXPIRY=expiry, SENT=sent), *(["WILL"] if will else [])]
        reply = self._call("SESSION.CLOSE", "EPOCH", epoch, *options)
        assert isinstance(reply, bytes)
        return reply

    def subscribe(self, *pairs: tuple[str | bytes, int | str], epoch: int | None = None) -> list[int]:
        """SESSION.SUBSCRIBE filter options …; EPOCH 0 unless an epoch is given."""
        flat = [part for pair in pairs for part in pair]
        return list(self._call("SESSION.SUBSCRIBE", "EPOCH", epoch or 0, *flat))

    def unsubscribe(self, *filters: str | bytes, epoch: int | None = None) -> list[int]:
        """SESSION.UNSUBSCRIBE filter …; EPOCH 0 unless an epoch is given."""
        return list(self._call("SESSION.UNSUBSCRIBE", "EPOCH", epoch or 0, *filters))

    def subscriptions(self) -> dict[bytes, int]:
        """SESSION.SUBSCRIPTIONS."""
        return {topic_filter: int(options) for topic_filter, options in self._call("SESSION.SUBSCRIPTIONS").items()}

    def expire_message(self, packet_id: int) -> None:
        """Let a message expire now, as if its time had come."""
        expire_now(self.client, self.message(packet_id))

    def keys(self) -> set[bytes]:
        """The names of all keys of the session."""
        return {name for name in names(self.client) if name.startswith(self.key + b"_")}

    def _call(self, command: str, *arguments: str | bytes | int) -> Any:
        return self.client.execute_command(command, self.key, *arguments)


def _page(reply: Any) -> Page:
    entries, more, expired = reply
    return Page([Entry(*entry) for entry in entries], more, expired)


def _options(**options: int | None) -> list[str | int]:
    return [part for name, value in options.items() if value is not None for part in (name, value)]


def publish(
    client: redis.Redis,
    topic: str | bytes,
    payload: str | bytes,
    *,
    qos: int = 1,
    retain: bool = False,
    ttl: int | None = None,
    publisher: str | None = None,
    epoch: int | None = None,
    packet: int | None = None,
    properties: bytes | None = None,
) -> int:
    """TOPIC.PUBLISH."""
    options: list[str | bytes | int] = ["QOS", qos, *(["RETAIN"] if retain else []), *_options(TTL=ttl)]
    options += ["FROM", publisher] if publisher is not None else []
    options += _options(EPOCH=epoch, PACKET=packet)
    options += ["PROPERTIES", properties] if properties is not None else []
    return int(client.execute_command("TOPIC.PUBLISH", topic, payload, *options))


def names(client: redis.Redis, pattern: str = "*") -> list[bytes]:
    """The names of the keys of the selected database that match."""
    return list(client.execute_command("KEYS", pattern))


def error_of(client: redis.Redis, *command: str | bytes | int) -> str | None:
    """The text of the error that a command gets, None if it is served."""
    try:
        client.execute_command(*command)
    except redis.ResponseError as error:
        return str(error)
    return None


def retained_topics(client: redis.Redis, topic_filter: str = "#", count: int | None = None) -> list[bytes]:
    """TOPIC.RETAINED, sorted."""
    return sorted(client.execute_command("TOPIC.RETAINED", topic_filter, *_options(COUNT=count)))


def listed_sessions(client: redis.Redis, *words: str | int) -> list[list[Any]]:
    """The rows of SESSION.LIST, of all pages: a page may end early, when its time is over."""
    cursor, rows = client.execute_command("SESSION.LIST", *words)
    while cursor != b"0":
        cursor, more = client.execute_command("SESSION.LIST", *words, "CURSOR", cursor)
        rows += more
    return list(rows)


def payloads(entries: Iterable[Entry]) -> list[bytes]:
    """The payloads of entries that hold publish records."""
    return [core.Record.decode(entry.value).payload for entry in entries]


def expire_now(client: redis.Redis, name: bytes | str) -> None:
    """Let a key expire now, and wait until it has."""
    assert client.pexpire(name, 1) == 1
    eventually(lambda: not client.exists(name), what=f"the expiry of {name!r}")


def now_ms(client: redis.Redis) -> int:
    """The server's clock, ms since 1970."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def epoch_after(epoch: int) -> int:
    """An epoch that no session has yet."""
    return epoch + 10**9


class Inbox:
    """Whoever listens on a session's inbox; a context manager.

    Args:
        server: where.
        key: the session key.
    """

    def __init__(self, server: Server, key: str | bytes = "{c}") -> None:
        channel = (key.encode() if isinstance(key, str) else key) + b"_inbox"
        self._raw = RawClient(server.port)
        assert self._raw.call("SUBSCRIBE", channel) == [b"subscribe", channel, 1]
        self._channel = channel

    def take(self) -> list[core.Delivery]:
        """All deliveries that came until now."""
        messages = self._raw.pending()
        deliveries = []
        for message in messages:
            assert isinstance(message, list)
            kind, channel, data = message
            assert (kind, channel) == (b"message", self._channel)
            deliveries.append(core.Delivery.decode(data))
        return deliveries

    def take_one(self) -> core.Delivery:
        """The only delivery that came until now."""
        (delivery,) = self.take()
        return delivery

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()


# --- The keyspace as a value ------------------------------------------------------------------------------------------


KEYS_AT_ONCE = 1000  # of a snapshot


class Key(NamedTuple):
    """What stands under a name."""

    kind: str
    value: object
    expires_ms: int


def digest(client: redis.Redis) -> bytes:
    """DEBUG DIGEST: over all databases, types, values and whether there is an expiry."""
    return bytes(client.execute_command("DEBUG", "DIGEST"))


def snapshot(client: redis.Redis) -> dict[bytes, Key]:
    """All keys of the selected database with their values and absolute expiry times (-1: none)."""
    found = names(client)
    keys: dict[bytes, Key] = {}
    for begin in range(0, len(found), KEYS_AT_ONCE):
        some = found[begin : begin + KEYS_AT_ONCE]
        pipe = client.pipeline(transaction=False)
        for name in some:
            pipe.execute_command("TYPE", name)
        kinds = [bytes(kind).decode() for kind in pipe.execute()]
        for name, kind in zip(some, kinds, strict=True):
            _read(pipe, name, kind)
            pipe.execute_command("PEXPIRETIME", name)
        replies = pipe.execute()
        for name, kind, value, expires_ms in zip(some, kinds, replies[::2], replies[1::2], strict=True):
            keys[name] = Key(kind, value, int(expires_ms))
    return keys


def _read(pipe: redis.client.Pipeline, name: bytes, kind: str) -> None:
    """Add the command that reads the whole key."""
    match kind:
        case "string":
            pipe.get(name)
        case "hash":
            pipe.hgetall(name)
        case "zset":
            pipe.zrange(name, 0, -1, withscores=True)
        case "list":
            pipe.lrange(name, 0, -1)
        case "set":
            pipe.smembers(name)
        case "stream":
            pipe.xrange(name)
        case _:
            raise AssertionError(f"the key {name!r} is a {kind}")


@contextmanager
def unchanged(client: redis.Redis) -> Iterator[None]:
    """The block must leave every key as it was, and nothing to replicate."""
    before, digest_before, writes_before = snapshot(client), digest(client), _writes(client)
    yield
    assert_same_keys(snapshot(client), before)
    if digest(client) != digest_before:
        raise AssertionError("the keys of another database changed")
    if _writes(client) != writes_before:
        raise AssertionError(f"{_writes(client) - writes_before} writes were replicated though nothing changed")


def assert_same_keys(got: dict[bytes, Key], want: dict[bytes, Key]) -> None:
    """The snapshots are equal; else an error that tells the keys that differ."""
    differing = {name for name in got.keys() | want.keys() if got.get(name) != want.get(name)}
    if differing:
        shown = "\n".join(f"  {name!r}: {got.get(name)}, expected {want.get(name)}" for name in sorted(differing)[:10])
        raise AssertionError(f"{len(differing)} keys differ:\n{shown}")


def _writes(client: redis.Redis) -> int:
    return int(client.info("persistence")["rdb_changes_since_last_save"])


def assert_indexes_hold(client: redis.Redis) -> None:
    """HOLDMQ.CHECK finds no difference."""
    differences = client.execute_command("HOLDMQ.CHECK")
    if differences:
        raise AssertionError(f"the indexes differ from a rebuild: {differences}")


def wait_for_replica(primary: redis.Redis, replica: redis.Redis) -> None:
    """Wait until the replica has applied everything that the primary wrote."""
    target = int(primary.info("replication")["master_repl_offset"])
    eventually(
        lambda: int(replica.info("replication")["slave_repl_offset"]) >= target, 20, "a replica that has caught up"
    )


# --- A matcher that owes nothing to the core --------------------------------------------------------------------------


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT 5.0 section 4.7, level by level."""
    pattern, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and pattern[0] in ("+", "#"):
        return False
    for at, level in enumerate(pattern):
        if level == "#":
            return True
        if at >= len(levels) or level not in ("+", levels[at]):
            return False
    return len(pattern) == len(levels)


def subscribed_sessions(client: redis.Redis) -> dict[bytes, dict[str, int]]:
    """Filters and options by session key, from the keys of the selected database; what means nothing is left out."""
    found: dict[bytes, dict[str, int]] = {}
    for name in names(client, "*_subscriptions"):
        key = name.removesuffix(SUBSCRIPTIONS)
        if client.type(name) != b"hash" or not SESSION_KEY.fullmatch(key):
            continue
        fields = client.execute_command("SESSION.SUBSCRIPTIONS", key)
        options = {field.decode(): value.split(b":")[0] for field, value in fields.items()}
        found[key] = {field: int(byte) for field, byte in options.items() if byte.isdigit()}
    return found


def expected_qos(filters: dict[str, int], topic: str) -> int | None:
    """The largest QoS among the filters that match, None if none does."""
    return max((options & 3 for topic_filter, options in filters.items() if matches(topic_filter, topic)), default=None)


def assert_routes_exactly(client: redis.Redis, topics: Sequence[str]) -> None:
    """Each publish reaches the sessions whose subscriptions match, and no other; and the indexes hold."""
    assert_indexes_hold(client)
    sessions = subscribed_sessions(client)
    for topic in topics:
        payload = f"token-{next(_tokens)}".encode()
        before = {name: client.zcard(name) for name in names(client, "*_messages")}
        publish(client, topic, payload, qos=2)
        got = {
            name.removesuffix(b"_messages")
            for name in names(client, "*_messages")
            if client.zcard(name) != before.get(name, 0)
        }
        want = {key for key, filters in sessions.items() if expected_qos(filters, topic)}
        behind_retained = {  # what is for them now comes through the queue, QoS 0 too
            key
            for key, filters in sessions.items()
            if expected_qos(filters, topic) == 0 and client.hexists(key.decode() + "_session", "qos0_until")
        }
        if got - behind_retained != want:
            raise AssertionError(f"{topic!r} reached {sorted(got)}, expected {sorted(want)}")
        for key in want:
            newest = Session(client, key).fetch_all()[-1]
            if core.Record.decode(newest.value).payload != payload:
                raise AssertionError(f"the newest message of {key!r} is {newest}, expected {payload!r} of {topic!r}")


def subscribe_in_vain(client: redis.Redis, chosen: random.Random, count: int) -> None:
    """Subscribes to so many filters that share many levels with a topic of 127 levels `a`, and do not match it."""
    pipe = client.pipeline(transaction=False)
    for number in range(count):
        name = "/".join([*chosen.choices("a+", k=126), "b"])
        pipe.execute_command("SESSION.SUBSCRIBE", f"{{deep{number % 8}}}", name, 1)
    pipe.execute()
