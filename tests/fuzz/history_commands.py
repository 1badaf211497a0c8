"""Random commands of history, and stock commands that damage its keys.

Stores, topics and readers are few, so that commands meet; bursts fill logs until posting lists are written.

To add a command: a row in `HISTORY`; what damages keys: a row in `DAMAGE`.
"""

from typing import TYPE_CHECKING

from holdmq import core

if TYPE_CHECKING:
    from tests.fuzz.commands import Generator, Maker

STORES = (b"s", b"s", b"s", b"t", b"u")
CHECKS = (b"1-9-9-0-0-0-0-0-0", b"1-9-5-0-2-1-3-0-4", b"1-0-99999-1-99-99999999-77777777-12-0", b"0", b"x")
BAD_STORES = (b"", b"none", b"a b", b"{", b"s" * 65, b"\xff", b"s/0")
STORE_FILTERS = (b"a/#", b"a/#", b"a/+", b"1/#", b"#", b"$SYS/#", b"a/b", b"+/+")
WORDS = (b"a", b"b", b"c", b"", b"x", b"a", b"1", b"2", b"3", b"long" * 20)
SHARDS = (b"0", b"0", b"0", b"1", b"2")
BAD_NUMBERS = (b"-1", b"64", b"99", b"x", b"", b"9223372036854775807", b"9223372036854775808", b"1.5")
PLACES = (b"1", b"2", b"3", b"10", b"100", b"500", b"1000", b"5000", b"0")
READERS = (b"archive", b"r1", b"r2", b"RELEASE", b"\xff\x00")
COLUMNS = (
    *(b"sequence", b"time", b"topic", b"payload", b"qos", b"retain", b"publisher", b"properties"),
    *(b"published", b"expires", b"pattern", b"generation"),
)
SETS = (
    b"holdmq-patterns 1 levels=8\n#\n",
    b"holdmq-patterns 1 levels=8\n#\na/+\na/+/x\n",
    b"holdmq-patterns 1 levels=8\n#\na/+3/#1\na/b\n",
    b"holdmq-patterns 1 levels=2\n#\na/b/#\n",
    b"holdmq-patterns 1 levels=8\na/+\n",
    b"holdmq-patterns 2 levels=8\n#\n",
    b"holdmq-patterns 1 levels=8\n#\n#\n",
    b"holdmq-patterns 1 levels=99\n#\n",
    b"\xff",
)
STATE_FIELDS = (
    *(b"time", b"sequence", b"generation", b"epoch", b"oldest", b"first", b"begun", b"bytes", b"before"),
    *(b"trimmed", b"dropping", b"writer", b"writers"),
)
WRITER_LINES = (b"1 1", b"7 1 8 5 7 9", b"7 5 8 1", b"0 1", b"7 1 ", b"7", b" ", b"4294967296 1", b"7 1 " * 16 + b"7 1")
POLICY_FIELDS = (
    b"shards",
    b"levels",
    b"age",
    b"epoch",
    b"bytes",
    b"hold",
    b"removed",
    b"seed",
    b"learn",
    b"spread",
    b"had",
    b"filter a/#",
)
EPOCH_LINES = (b"1 1 1 0", b"1 1000000 5 100", b"2 1 1 0", b"x", b"1 1 0 0", b"1 1 1", b"9 9 9 99999999999999999999")
HOLD_LINES = (b"0", b"5", b"lost 5", b"lost", b"lost x", b"99999999999999999999", b"-1", b"")
CURSORS = (b"h1-", b"", b"h1-0-0", b"\xff" * 100)
BURST = b"""local n, width = math.min(tonumber(ARGV[3]) or 1, 1100), tonumber(ARGV[4]) or 1
for i = 1, n do redis.pcall(ARGV[5], unpack(ARGV[5] == 'TOPIC.PUBLISH' and {ARGV[2] .. (i % width), i}
    or {ARGV[1], ARGV[2] .. (i % width), i})) end
return n"""
# What a first page replies goes on in a second one; the clock moves by hand in between, or keys go.
PAGES = b"""local reply = redis.call('HISTORY.REPLAY', ARGV[1], 'COUNT', ARGV[2])
if ARGV[3] ~= '' then redis.call('HISTORY.TRIM', ARGV[4], 0, ARGV[3]) end
return redis.call('HISTORY.REPLAY', ARGV[1], 'CURSOR', reply[2])"""
MOVE = b"""local last = redis.call('HGET', KEYS[1], ARGV[1])
return redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', (tonumber(last) or 0) + tonumber(ARGV[2])))"""


def store(g: "Generator") -> bytes:
    """The name of a store."""
    return g.one(STORES, BAD_STORES, 0.03)


def shard(g: "Generator") -> bytes:
    """A shard's number."""
    return g.one(SHARDS, BAD_NUMBERS, 0.05)


def place(g: "Generator") -> bytes:
    """A sequence number, or how many."""
    return g.one(PLACES, BAD_NUMBERS, 0.05)


def topic(g: "Generator") -> bytes:
    """A topic that a store may select."""
    levels = [g.one((b"a", b"a", b"1", b"$SYS")), *(g.one(WORDS) for _ in range(g.random.randrange(4)))]
    return b"/".join(levels) if g.random.random() < 0.95 else g.topic()


def asked(g: "Generator") -> bytes:
    """A filter that is asked for."""
    if g.random.random() < 0.2:
        return g.filter()
    levels = [g.one((b"a", b"+", b"1")), *(g.one((*WORDS, b"+", b"+", b"+")) for _ in range(g.random.randrange(4)))]
    return b"/".join(levels) + g.one((b"", b"/#"))


def key(g: "Generator") -> bytes:
    """The name of a key of history."""
    name = g.one(STORES)
    tag = b"{%b/%b}_history" % (name, g.one(SHARDS))
    epoch, pattern = g.one((b"1", b"1", b"2", b"3", b"4")), g.one((b"0", b"0", b"1", b"2"))
    ends = (
        *(b"", b"_epochs", b"_holds", b"_producers", b"_prepared"),
        *(b"_%b_%b" % (epoch, pattern), b"_%b_marks" % epoch, b"_%b_patterns" % epoch),
        b"_%b_%b_%b_%b_%b" % (epoch, pattern, g.one((b"0", b"1", b"2")), g.one((b"0", b"1")), g.one((b"0", b"1"))),
    )
    return g.one(tuple(tag + end for end in ends)) if g.random.random() < 0.9 else b"{%b}_history_store" % name


def policy(g: "Generator") -> list[bytes]:
    """HISTORY.STORE."""
    options = g.maybe((b"SHARDS", lambda: g.one((b"1", b"2", b"3"), BAD_NUMBERS)), (b"LEVELS", g.number))
    options += g.maybe((b"AGE", lambda: g.one((b"0", b"1", b"100"), BAD_NUMBERS)), (b"EPOCH", g.number))
    options += g.maybe((b"BYTES", lambda: g.one((b"0", b"1", b"1000", b"50000"))), (b"HOLDBYTES", g.number))
    options += g.maybe((b"LEARN", lambda: g.one((b"0", b"1", b"60"))))
    filters = [word for _ in range(1 + g.random.randrange(2)) for word in (b"FILTER", g.one(STORE_FILTERS))]
    return [b"HISTORY.STORE", store(g), *filters, *options]


def policy_or_none(g: "Generator") -> list[bytes]:
    """HISTORY.UNSTORE now and then."""
    return [b"HISTORY.UNSTORE", store(g)] if g.random.random() < 0.3 else policy(g)


def record(g: "Generator") -> bytes:
    """A published message as a record, now and then a broken one."""
    if g.random.random() < 0.1:
        return g.value()
    expires_ms = g.random.choice((0, 0, 1, 4_000_000_000_000))
    made = core.Record(topic=topic(g)[:65535], payload=g.one((b"m", b"")), expires_ms=expires_ms, time_ms=1)
    return made.encode()


def watermarks(g: "Generator") -> list[bytes]:
    """What follows the reader of HISTORY.HOLD."""
    if g.random.random() < 0.2:
        return [b"RELEASE"]
    return [part for _ in range(g.random.randrange(3)) for part in (shard(g), place(g))]


def range_options(g: "Generator") -> list[bytes]:
    """Of HISTORY.RANGE."""
    some = g.some(lambda: g.one(COLUMNS, (b"none", b""), 0.03))
    columns = [b"COLUMNS", str(len(some)).encode(), *some]
    options = g.maybe((b"FILTER", lambda: asked(g)), (b"COUNT", g.number), (b"BYTES", g.number), (b"VISIT", g.number))
    return options + (columns if g.random.random() < 0.5 else []) + g.maybe((b"PACKED",), (b"EXPIRED",))


def of_shard(g: "Generator") -> list[bytes]:
    """Sometimes a shard."""
    return g.maybe((b"SHARD", lambda: shard(g)))


def start(g: "Generator") -> bytes:
    """Options of a subscription that replays."""
    return g.one((b"0", b"1", b"2", b"1:7")) + b"@" + g.one((b"earliest", b"now", b"0", b"1", b"!", b"x", b"earliest!"))


def burst(g: "Generator") -> list[bytes]:
    """Many messages in one step."""
    command = g.one((b"HISTORY.APPEND", b"HISTORY.APPEND", b"TOPIC.PUBLISH"))
    count, width = g.one((b"30", b"300", b"300", b"1100")), g.one((b"1", b"3", b"50", b"2000"))
    return [b"EVAL", BURST, b"0", g.one(STORES), g.one((b"a/", b"a/b/", b"1/")), count, width, command]


def chunk(g: "Generator") -> list[bytes]:
    """Sometimes a producer with epoch and chunk."""
    return [b"PRODUCER", g.one((b"p1", b"p2")), g.number(), g.number()] if g.random.random() < 0.3 else []


# fmt: off
HISTORY: "tuple[Maker, ...]" = (
    policy,
    policy,
    burst,
    burst,
    lambda g: [b"HISTORY.STORES"],
    policy_or_none,
    lambda g: [b"HISTORY.APPEND", store(g), topic(g), g.value(), *chunk(g)],
    lambda g: [b"HISTORY.APPEND", store(g), topic(g), g.value(), *g.maybe((b"QOS", g.number), (b"RETAIN",),
               (b"TTL", g.number), (b"FROM", g.value), (b"PROPERTIES", g.value))],
    lambda g: [b"HISTORY.IMPORT", store(g), shard(g), *chunk(g), b"RECORD", *g.some(lambda: record(g), 20)],
    lambda g: [b"TOPIC.PUBLISH", topic(g), g.value(), b"QOS", g.one((b"0", b"1", b"2"))],
    lambda g: [b"HISTORY.TRIM", store(g), shard(g), place(g)],
    lambda g: [b"HISTORY.HOLD", store(g), g.one(READERS), *watermarks(g)],
    lambda g: [b"HISTORY.INFO", store(g), *of_shard(g)],
    lambda g: [b"HISTORY.SEQ", store(g), shard(g), g.one((b"0", b"1", b"9007199254740"), BAD_NUMBERS)],
    lambda g: [b"HISTORY.RANGE", store(g), shard(g), place(g), place(g), *range_options(g)],
    lambda g: [b"HISTORY.REPLAY", asked(g), *g.maybe((b"STORE", lambda: store(g)), (b"FROM", g.number),
               (b"SEQ", lambda: place(g)), (b"TO", g.number), (b"COUNT", g.number), (b"BYTES", g.number),
               (b"VISIT", g.number)), *of_shard(g)],
    lambda g: [b"HISTORY.REPLAY", asked(g), b"CURSOR", g.one(CURSORS)],
    lambda g: [b"EVAL", PAGES, b"0", asked(g), g.one((b"1", b"10", b"500")), g.one((b"", b"1", b"50", b"2000")),
               store(g)],
    lambda g: [b"HISTORY.PATTERNS", b"GET", store(g), *of_shard(g), *g.maybe((b"GENERATION", g.number))],
    lambda g: [b"HISTORY.PATTERNS", b"STATS", store(g), *of_shard(g)],
    lambda g: [b"HISTORY.PATTERNS", b"PROPOSE", store(g), *g.maybe((b"MARGIN", g.number))],
    lambda g: [b"HISTORY.PATTERNS", b"PREPARE", store(g), g.one((b"2", b"3", b"4"), BAD_NUMBERS), g.one(SETS),
               *g.maybe((b"SHARDS", lambda: g.one((b"1", b"2", b"4"), BAD_NUMBERS))), *of_shard(g)],
    lambda g: [b"HISTORY.CHECK", store(g), shard(g), *g.maybe((b"EPOCH", g.number), (b"COUNT", g.number))],
    lambda g: [b"HISTORY.CHECK", store(g), shard(g), b"CURSOR", g.one(CHECKS), *g.maybe((b"COUNT", g.number))],
    lambda g: [b"HISTORY.PATTERNS", b"COMMIT", store(g), g.one((b"2", b"3", b"4"), BAD_NUMBERS), *of_shard(g)],
    lambda g: [b"HISTORY.PATTERNS", b"ABORT", store(g), *of_shard(g)],
    lambda g: [b"SESSION.SUBSCRIBE", g.key(), *g.epoch(), g.one((asked(g), *STORE_FILTERS, b"$share/g/a/#")), start(g)],
    lambda g: [b"SESSION.REPLAY", g.one((g.key(), b"{$share/g/a/#}")), *g.epoch(), *g.maybe((b"COUNT", g.number),
               (b"BYTES", g.number), (b"VISIT", g.number), (b"QUEUE", g.number))],
    lambda g: [b"SUBSCRIBE", b"holdmq:history:" + g.one(STORES)],
    lambda g: [b"HOLDMQ.CHECK"],
)

DAMAGE: "tuple[Maker, ...]" = (
    lambda g: [b"SET", key(g), g.one((g.value(), g.number(), *SETS))],
    lambda g: [g.one((b"DEL", b"UNLINK")), *g.some(lambda: key(g))],
    lambda g: [b"HSET", b"{%b/%b}_history" % (g.one(STORES), g.one(SHARDS)), g.one(STATE_FIELDS),
               g.one((*PLACES, *BAD_NUMBERS))],
    lambda g: [b"EVAL", MOVE, b"1", b"{%b/%b}_history" % (g.one(STORES), g.one(SHARDS)), g.one(STATE_FIELDS),
               g.one((b"1", b"-1", b"3600000000", b"-3600000000"))],
    lambda g: [b"HDEL", b"{%b/%b}_history" % (g.one(STORES), g.one(SHARDS)), g.one(STATE_FIELDS)],
    lambda g: [b"HSET", b"{%b/%b}_history" % (g.one(STORES), g.one(SHARDS)), b"writers", g.one(WRITER_LINES)],
    lambda g: [b"HSET", b"{%b}_history_store" % g.one(STORES), g.one(POLICY_FIELDS), g.one((*PLACES, *BAD_NUMBERS))],
    lambda g: [b"HSET", b"{%b/%b}_history_epochs" % (g.one(STORES), g.one(SHARDS)), g.number(), g.one(EPOCH_LINES)],
    lambda g: [b"HDEL", b"{%b/%b}_history_epochs" % (g.one(STORES), g.one(SHARDS)), g.number()],
    lambda g: [b"HSET", b"{%b/%b}_history_holds" % (g.one(STORES), g.one(SHARDS)), g.one(READERS), g.one(HOLD_LINES)],
    lambda g: [b"HSET", b"{%b}_replays" % g.one((b"c1", b"c2")), asked(g), g.value()],
    lambda g: [b"XADD", key(g), g.one((b"*", b"5-5", b"1000-9", b"9223372036854775807-1")), g.one((b"m", b"x")),
               g.one((record(g), g.value()))],
    lambda g: [b"XTRIM", key(g), b"MAXLEN", g.one((b"0", b"1", b"100"))],
    lambda g: [b"APPEND", key(g), g.value()],
    lambda g: [b"SETRANGE", key(g), g.one((b"0", b"1", b"255", b"300")), g.one((b"\xff", b"\x00", b"\x80\x80"))],
    lambda g: [b"PEXPIRE", key(g), g.one((b"1", b"5", b"-1"))],
    lambda g: [b"RENAME", key(g), key(g)],
    lambda g: [b"COPY", key(g), key(g), b"REPLACE"],
    lambda g: [b"RENAME", b"{%b}_history_store" % g.one(STORES), b"{%b}_history_store" % g.one(STORES)],
    lambda g: [b"MOVE", key(g), g.one((b"0", b"1"))],
    lambda g: [b"HSET", key(g), g.value(), g.value()],
)
# fmt: on
