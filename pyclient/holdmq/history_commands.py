"""The commands about history without I/O, like those of `holdmq.commands`.

In a cluster, a command about a shard goes to the node that has the slot of the shard's key (`shard_key`). That key is
not an argument of the command: it is in `Command.key`.

Examples:
    >>> command = history_replay("a/#", store="s", count=10)
    >>> command.words
    ('HISTORY.REPLAY', b'a/#', 'STORE', b's', 'FROM', 'earliest', 'COUNT', 10)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdmq import _arguments as arguments
from holdmq import _history_parsing as parsing
from holdmq import _wire as wire
from holdmq._history_layout import (
    MAX_IMPORT,
    MAX_SHARDS,
    StoreCopy,
    StoreLayout,
    history_copies,
    shard_key,
    shard_slot,
    store_layout,
    store_name,
)
from holdmq._history_times import MAX_MS, end_ms, needs_clock, server_time_ms, time_ms
from holdmq._wire import Word
from holdmq.commands import MAX_CLIENT_ID_BYTES, MAX_EXPIRY_S, Command, Scope
from holdmq.core import filters_overlap
from holdmq.durations import Duration, Start, whole_seconds
from holdmq.errors import ArgumentError
from holdmq.history_replies import (
    COLUMNS,
    HistoryColumns,
    HistoryImport,
    HistoryInfo,
    HistoryPage,
    HistoryPlace,
    HistoryPolicy,
    PatternProposal,
    PatternStats,
)
from holdmq.replies import Message, Payload, ProducerChunk, Text

__all__ = [
    "CHECK_COUNT",
    "MAX_CHECK_COUNT",
    "MAX_FILTERS",
    "MAX_IMPORT",
    "MAX_LEVELS",
    "MAX_MS",
    "MAX_RANGE_BYTES",
    "MAX_ROWS",
    "MAX_SHARDS",
    "SETTINGS",
    "Duration",
    "Start",
    "StoreCopy",
    "StoreLayout",
    "end_ms",
    "filters_overlap",
    "history_append",
    "history_check",
    "history_copies",
    "history_hold",
    "history_import",
    "history_info",
    "history_range",
    "history_release",
    "history_replay",
    "history_sequence",
    "history_store",
    "history_store_here",
    "history_stores",
    "history_trim",
    "history_unstore",
    "message_of",
    "needs_clock",
    "patterns_abort",
    "patterns_commit",
    "patterns_get",
    "patterns_prepare",
    "patterns_propose",
    "patterns_stats",
    "reader_name",
    "server_time_ms",
    "shard_key",
    "shard_slot",
    "store_layout",
    "store_name",
    "time_ms",
    "wakeup_channel",
]

MAX_LEVELS = 16
"""The maximum number of indexed levels of a topic."""
MAX_FILTERS = 1000
"""The maximum number of topic filters of a store."""
MAX_ROWS = 100_000
"""The maximum number of messages in a page of a range."""
MAX_RANGE_BYTES = 2**28
"""The maximum size of a page of a range."""
MAX_CHECK_COUNT = 1_000_000
"""The maximum number of messages and entries that one part of a check examines."""
CHECK_COUNT = 1000
"""How many messages and entries one part of a check examines by default, which takes one to three milliseconds."""

SETTINGS = {
    "shards": ("SHARDS", 1, MAX_SHARDS),
    "age": ("AGE", 0, MAX_EXPIRY_S),
    "max_bytes": ("BYTES", 0, wire.MAX_NUMBER),
    "hold_bytes": ("HOLDBYTES", 0, wire.MAX_NUMBER),
    "levels": ("LEVELS", 1, MAX_LEVELS),
    "epoch": ("EPOCH", 1, MAX_EXPIRY_S),
    "learn": ("LEARN", 0, MAX_EXPIRY_S),
}
"""The settings of a store: the word of the command, the lowest and the highest value. Times are in seconds."""
DURATIONS = ("age", "epoch", "learn")
"""The settings that are times."""


MAX_READER_BYTES = 256
"""The maximum length of the name of a reader."""
WAKEUP_CHANNEL = b"holdmq:history:"


def wakeup_channel(store: Text) -> bytes:
    """The channel on which the server announces new messages of a store."""
    return WAKEUP_CHANNEL + store_name(store)


# --- Stores -----------------------------------------------------------------------------------------------------------


def history_store(store: Text, filters: Sequence[str], **settings: Duration | None) -> Command[None]:
    """`HISTORY.STORE`: creates or changes a store. The settings are those of `SETTINGS`; None changes nothing."""
    return Command(_store_words(store, filters, settings), wire.ok, scope=Scope.FIRST)


def history_store_here(
    store: Text, filters: Sequence[str], seed: str, changed_ms: int, **settings: Duration | None
) -> Command[tuple[int, ...]]:
    """`HISTORY.STORE … SEED … CHANGED`: creates or changes the shards of a cluster node. Replies them."""
    changed = arguments.in_range("changed_ms", changed_ms, 0, MAX_MS)
    words = (*_store_words(store, filters, settings), "SEED", arguments.name("seed", seed), "CHANGED", changed)

    def parse(reply: object) -> tuple[int, ...]:
        return tuple(wire.integer(shard) for shard in wire.array(reply))

    return Command(words, parse, scope=Scope.SHARD, key=shard_key(store, 0))


def _store_words(store: Text, filters: Sequence[str], settings: Mapping[str, Duration | None]) -> tuple[Word, ...]:
    words: list[Word] = ["HISTORY.STORE", store_name(store)]
    for one in arguments.some("filters", filters, MAX_FILTERS):
        words += ["FILTER", wire.topic_filter(one)]
    for name, value in settings.items():
        if name not in SETTINGS:
            raise ArgumentError(f"a setting is {name!r}; expected {', '.join(SETTINGS)}")
        word, low, high = SETTINGS[name]
        if value is not None:
            in_limits = (
                whole_seconds(name, value, low, high)
                if name in DURATIONS
                else arguments.in_range(name, value, low, high)
            )
            words += [word, in_limits]
    return tuple(words)


def history_stores() -> Command[tuple[HistoryPolicy, ...]]:
    """`HISTORY.STORES`: the policies of all stores, ordered by name. In a cluster: of all nodes, each store once."""

    def merge(parts: Sequence[tuple[HistoryPolicy, ...]]) -> tuple[HistoryPolicy, ...]:
        found = {policy.store: policy for part in parts for policy in part}
        return tuple(found[name] for name in sorted(found))

    def parse(reply: object) -> tuple[HistoryPolicy, ...]:
        return tuple(parsing.policy(wire.mapping(item)) for item in wire.array(reply))

    return Command(("HISTORY.STORES",), parse, scope=Scope.ALL, merge=merge)


def history_unstore(store: Text) -> Command[None]:
    """`HISTORY.UNSTORE`: removes a store with all its messages."""
    return Command(("HISTORY.UNSTORE", store_name(store)), wire.ok, scope=Scope.FIRST)


def history_info(store: Text, shard: int | None = None) -> Command[HistoryInfo]:
    """`HISTORY.INFO`: the state of a store, or of one shard."""
    words: list[Word] = ["HISTORY.INFO", store_name(store)]
    if shard is None:
        return Command(tuple(words), parsing.info, scope=Scope.FIRST)
    return Command((*words, "SHARD", shard), parsing.info, scope=Scope.SHARD, key=shard_key(store, shard))


def history_check(
    store: Text, shard: int, *, epoch: int | None = None, cursor: str | None = None, count: int = CHECK_COUNT
) -> Command[tuple[str, tuple[str, ...]]]:
    """`HISTORY.CHECK … COUNT`: checks part of an epoch's index. Replies the cursor (`0` at the end) and the faults."""
    words: list[Word] = ["HISTORY.CHECK", store_name(store), shard]
    words += _numbers(EPOCH=("epoch", epoch, 1, wire.MAX_NUMBER))
    words += [] if cursor is None else ["CURSOR", arguments.name("cursor", cursor)]
    words += ["COUNT", arguments.in_range("count", count, 1, MAX_CHECK_COUNT)]

    def parse(reply: object) -> tuple[str, tuple[str, ...]]:
        behind, sentences = wire.array(reply, 2)
        return wire.decoded(behind), wire.names(sentences)

    return Command(tuple(words), parse, scope=Scope.SHARD, key=shard_key(store, shard))


# --- Writing ----------------------------------------------------------------------------------------------------------


def message_of(
    topic: str, payload: Payload, qos: int, retain: bool, publisher: Text | None, properties: bytes
) -> Message:
    """Makes a `Message` from the arguments of a publish or an append."""
    by = wire.decoded(arguments.name("publisher", publisher)) if publisher is not None else ""
    content = bytes(arguments.payload("payload", payload))
    return Message(topic=topic, payload=content, qos=qos, retain=retain, publisher=by, properties=properties)


def history_append(
    store: Text, message: Message, *, ttl: Duration | None = None, producer: ProducerChunk | None = None
) -> Command[HistoryPlace]:
    """`HISTORY.APPEND`: stores a message without publishing it. The times of the message are not sent."""
    arguments.instance("message", message, Message)
    content = arguments.payload("payload", message.payload)
    words: list[Word] = ["HISTORY.APPEND", store_name(store), wire.topic(message.topic), content]
    words += ["QOS", arguments.in_range("qos", message.qos, 0, 2)]
    if arguments.flag("retain", message.retain):
        words.append("RETAIN")
    words += [] if ttl is None else ["TTL", whole_seconds("ttl", ttl, 1, MAX_EXPIRY_S)]
    if message.publisher != "":
        words += ["FROM", arguments.name("publisher", message.publisher, MAX_CLIENT_ID_BYTES)]
    if arguments.binary("properties", message.properties):
        words += ["PROPERTIES", message.properties]
    words += wire.chunk_words(producer)
    return Command(tuple(words), parsing.place, scope=Scope.TOPIC)


def history_import(
    store: Text, shard: int, messages: Sequence[Message | bytes], *, producer: ProducerChunk | None = None
) -> Command[HistoryImport]:
    """`HISTORY.IMPORT`: appends messages, or their records, to the shard of their topics in one step."""
    words: list[Word] = ["HISTORY.IMPORT", store_name(store), shard, *wire.chunk_words(producer), "RECORD"]
    words += [
        one.to_record() if isinstance(one, Message) else arguments.binary("a message", one, "a Message or a record")
        for one in arguments.some("messages", messages, MAX_IMPORT)
    ]
    return Command(tuple(words), parsing.imported, scope=Scope.SHARD, key=shard_key(store, shard))


# --- Reading ----------------------------------------------------------------------------------------------------------


def history_replay(
    topic_filter: str,
    *,
    store: Text | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    count: int | None = None,
    max_bytes: int | None = None,
    shard: int | None = None,
    cursor: str | None = None,
) -> Command[HistoryPage]:
    """`HISTORY.REPLAY`: a page of matching messages, from `start_ms` (None: the earliest) or from a cursor."""
    words: list[Word] = ["HISTORY.REPLAY", wire.topic_filter(topic_filter)]
    if store is not None:
        words += ["STORE", store_name(store)]
    if cursor is None:
        words += ["FROM", "earliest" if start_ms is None else arguments.in_range("start", start_ms, 0, MAX_MS)]
    words += _numbers(
        TO=("end", end_ms, 0, MAX_MS),
        COUNT=("count", count, 1, wire.MAX_NUMBER),
        BYTES=("max_bytes", max_bytes, 1, wire.MAX_NUMBER),
        SHARD=("shard", shard, 0, MAX_SHARDS - 1),
    )
    if cursor is not None:
        words += ["CURSOR", arguments.name("cursor", cursor)]
    if store is not None and shard is not None:
        return Command(tuple(words), parsing.page, scope=Scope.SHARD, key=shard_key(store, shard))
    return Command(tuple(words), parsing.page, scope=Scope.FIRST)


def history_sequence(store: Text, shard: int, at_ms: int) -> Command[int]:
    """`HISTORY.SEQ`: the sequence number of the first message of a shard at or after a time."""
    words = ("HISTORY.SEQ", store_name(store), shard, arguments.in_range("time", at_ms, 0, MAX_MS))
    return Command(words, wire.integer, scope=Scope.SHARD, key=shard_key(store, shard))


def history_range(
    store: Text,
    shard: int,
    numbers: tuple[int, int],
    *,
    topic_filter: str | None = None,
    columns: Iterable[str] = COLUMNS,
    count: int | None = None,
    max_bytes: int | None = None,
    expired: bool = False,
) -> Command[HistoryColumns]:
    """`HISTORY.RANGE … PACKED`: the messages of a shard by sequence number, both ends included, as columns."""
    names = arguments.words("column", columns, COLUMNS)
    words: list[Word] = ["HISTORY.RANGE", store_name(store), shard]
    first, last = arguments.pair("numbers", numbers, "first and last")
    words += [
        arguments.in_range("first", first, 1, wire.MAX_NUMBER),
        arguments.in_range("last", last, 0, wire.MAX_NUMBER),
    ]
    if topic_filter is not None:
        words += ["FILTER", wire.topic_filter(topic_filter)]
    words += ["COLUMNS", len(names), *names]
    words += _numbers(
        COUNT=("count", count, 1, MAX_ROWS),
        BYTES=("max_bytes", max_bytes, 1, MAX_RANGE_BYTES),
    )
    words += ["PACKED", *(["EXPIRED"] if arguments.flag("expired", expired) else [])]

    def parse(reply: object) -> HistoryColumns:
        next_sequence, visited, missed, rows, packed = wire.array(reply, 5)
        buffers = {
            name: tuple(map(wire.string, item)) if isinstance(item, list) else (wire.string(item),)
            for name, item in zip(names, wire.array(packed, len(names)), strict=True)
        }
        return HistoryColumns(
            shard, wire.integer(next_sequence), wire.integer(visited), wire.integer(missed), wire.integer(rows), buffers
        )

    return Command(tuple(words), parse, scope=Scope.SHARD, key=shard_key(store, shard))


# --- Retention --------------------------------------------------------------------------------------------------------


def history_trim(store: Text, shard: int, sequence: int) -> Command[int]:
    """`HISTORY.TRIM`: removes messages up to a sequence number. Replies the first one that can still be read."""
    words = ("HISTORY.TRIM", store_name(store), shard, arguments.in_range("sequence", sequence, 0, wire.MAX_NUMBER))
    return Command(words, wire.integer, scope=Scope.SHARD, key=shard_key(store, shard))


def history_hold(store: Text, reader: Text, watermarks: Mapping[int, int] | None = None) -> Command[dict[int, int]]:
    """`HISTORY.HOLD`: sets how far a reader has read each shard. Replies the reader's watermarks."""
    words: list[Word] = ["HISTORY.HOLD", store_name(store), _reader(reader)]
    key = shard_key(store, 0)
    for shard, sequence in arguments.mapping("watermarks", {} if watermarks is None else watermarks).items():
        key = shard_key(store, shard)
        words += [shard, arguments.in_range("sequence", sequence, 0, wire.MAX_NUMBER)]
    return Command(tuple(words), parsing.watermarks, scope=Scope.SHARD, key=key)


def reader_name(reader: Text) -> str:
    """The name of a reader as `HISTORY.INFO` shows it."""
    return wire.decoded(_reader(reader))


def _reader(reader: Text) -> bytes:
    return arguments.name("reader", reader, MAX_READER_BYTES)


def history_release(store: Text, reader: Text) -> Command[None]:
    """`HISTORY.HOLD … RELEASE`: ends the hold of a reader."""
    words = ("HISTORY.HOLD", store_name(store), _reader(reader), "RELEASE")
    return Command(words, wire.ok, scope=Scope.SHARD, key=shard_key(store, 0))


# --- Patterns ---------------------------------------------------------------------------------------------------------


def _patterns(word: str, store: Text, *rest: Word, shard: int | None) -> tuple[Word, ...]:
    words: list[Word] = ["HISTORY.PATTERNS", word, store_name(store), *rest]
    words += _numbers(SHARD=("shard", shard, 0, MAX_SHARDS - 1))
    return tuple(words)


def _scoped(store: Text, shard: int | None) -> dict[str, Any]:
    """A command about patterns goes where the shard is."""
    return {"scope": Scope.SHARD, "key": shard_key(store, shard or 0)}


def patterns_get(store: Text, *, shard: int | None = None, generation: int | None = None) -> Command[tuple[int, str]]:
    """`HISTORY.PATTERNS GET`: a generation and its pattern set."""
    words = [*_patterns("GET", store, shard=shard)]
    words += _numbers(GENERATION=("generation", generation, 1, wire.MAX_NUMBER))

    def parse(reply: object) -> tuple[int, str]:
        number, text = wire.array(reply, 2)
        return wire.integer(number), wire.decoded(text)

    return Command(tuple(words), parse, **_scoped(store, shard))


def patterns_stats(store: Text, *, shard: int | None = None) -> Command[tuple[PatternStats, ...]]:
    """`HISTORY.PATTERNS STATS`: each pattern of the current set."""

    def parse(reply: object) -> tuple[PatternStats, ...]:
        return tuple(parsing.stats(wire.mapping(item)) for item in wire.array(reply))

    return Command(_patterns("STATS", store, shard=shard), parse, **_scoped(store, shard))


def patterns_prepare(
    store: Text, generation: int, text: str, *, shards: int | None = None, shard: int | None = None
) -> Command[None]:
    """`HISTORY.PATTERNS PREPARE`: checks a pattern set, and how many shards there are to be, for a generation."""
    words: list[Word] = [arguments.in_range("generation", generation, 1, wire.MAX_NUMBER), arguments.name("text", text)]
    words += _numbers(SHARDS=("shards", shards, 1, MAX_SHARDS))
    return Command(_patterns("PREPARE", store, *words, shard=shard), wire.ok, **_scoped(store, shard))


def patterns_commit(store: Text, generation: int, *, shard: int | None = None) -> Command[None]:
    """`HISTORY.PATTERNS COMMIT`: switches to the prepared pattern set."""
    number = arguments.in_range("generation", generation, 1, wire.MAX_NUMBER)
    return Command(_patterns("COMMIT", store, number, shard=shard), wire.ok, **_scoped(store, shard))


def patterns_abort(store: Text, *, shard: int | None = None) -> Command[None]:
    """`HISTORY.PATTERNS ABORT`: discards the prepared pattern set."""
    return Command(_patterns("ABORT", store, shard=shard), wire.ok, **_scoped(store, shard))


def patterns_propose(store: Text, *, margin: int | None = None) -> Command[PatternProposal]:
    """`HISTORY.PATTERNS PROPOSE`: the learner's proposal (margin in percent)."""
    words: list[Word] = ["HISTORY.PATTERNS", "PROPOSE", store_name(store)]
    words += _numbers(MARGIN=("margin", margin, 0, 100))
    return Command(tuple(words), parsing.proposal, **_scoped(store, None))


# --- Arguments --------------------------------------------------------------------------------------------------------


def _numbers(**options: tuple[str, int | None, int, int]) -> list[Word]:
    """Options that are numbers: word=(name in errors, value, lowest, highest). Skips a value of None."""
    words: list[Word] = []
    for word, (name, value, low, high) in options.items():
        if value is not None:
            words += [word, arguments.in_range(name, value, low, high)]
    return words
