"""Random commands: every command of the module, and stock commands that damage what the module keeps.

Invariants
    1. What is generated follows from the random number generator alone: a seed is a run.
    2. Nothing blocks a connection for more than a moment, stops the server or changes how its replies are framed.

To add a command: a row in `MODULE` or `STOCK`; those of history are in `history_commands.py`.
"""

import random
from collections.abc import Callable

from holdmq import core
from tests.fuzz.history_commands import DAMAGE, HISTORY
from tests.support.raw import encoded

Command = tuple[bytes, ...]
# Which connection sends it, and what.
Step = tuple[int, Command]
Maker = Callable[["Generator"], list[bytes]]

CONNECTIONS = 6  # odd ones speak RESP3
WEIGHTS = (4, 4, 4, 4, 1, 2)
LISTENER = 4  # the one with RESP2 that subscribes
SUBSCRIBING = (b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE")
BIG = 1 << 20

IDS = (b"c1", b"c1", b"c1", b"c2", b"dev%7B1%7D", b"a/b", b"\xff\xfe\x00", b"%25")
BAD_KEYS = (b"", b"{}", b"c1", b"{a", b"{a}b", b"{a{b}", b"{%ZZ}", b"{%}", b"}{", b"{c1}{c2}", b"\x00", b"{\x00}")
SUFFIXES = (
    b"_messages",
    b"_last_packet_id",
    b"_subscriptions",
    b"_session",
    b"_received",
    b"_producers",
    b"_inbox",
    b"_replays",
    b"_cursors",
)
TOPICS = (b"a", b"a/b", b"a/b/c", b"/", b"$SYS/x", b"{c1}", b"t%7B", b"\xc3\xa9/x", b"a//b", b"1/" * 127 + b"1")
BAD_TOPICS = (b"", b"a\x00b", b"\xc0\x80", b"a/+", b"#", b"\xed\xa0\x80", b"/" * 200, b"x" * 65536, b"\xff")
SHARES = (b"$share/g/#", b"$share/g/a/+", b"$share/h/a/+")
OPTIONS = (
    b"0",
    b"1",
    b"2",
    b"4",
    b"9",
    b"33",
    b"1:7",
    b"1@earliest",
    b"2@1",
    b"0@now",
    b"1@!",
    b"2:7@earliest!",
    b"1@",
)
FILTERS = (
    *SHARES,
    b"#",
    b"+",
    b"a/#",
    b"a/+",
    b"+/+",
    b"a/b",
    b"/",
    b"$SYS/#",
    b"$share/g/a/#",
    b"$share/g/#",
    b"{c1}",
    b"EPOCH",
)
BAD_FILTERS = (
    b"a#",
    b"a/#/b",
    b"+a",
    b"$share/",
    b"$share/g",
    b"$share//a",
    b"$share/+/a",
    b"",
    b"\xff",
    b"\x00",
    b"/" * 300,
)
CHANNELS = (
    b"ch",
    b"ch1",
    b"{ch}",
    b"x{y}z",
    b"x}y",
    b"{c1}_inbox",
    b"{c1}_messages",
    b"%s%n%d",
    b"",
    b"\xff\x00",
    b"{ch}_last",
)
PATTERNS = (b"*", b"ch*", b"{*", b"c?", b"[a-z]*", b"[^", b"\\", b"*" * 50, b"x\\*", b"", b"{ch}*", b"\xff*", b"[\\]]*")
NUMBERS = (b"1", b"2", b"3", b"4", b"5", b"6", b"10", b"100", b"1000")
ODD_NUMBERS = (
    *(str(n).encode() for n in (0, -1, 65535, 65536, 10000, 10001, 2147483647, 2147483648, 4294967295, 4294967296)),
    *(str(n).encode() for n in (2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, 10**30)),
    *(b"", b" 1", b"1 ", b"+1", b"01", b"0x10", b"1e3", b"1.0", b"nan", b"inf", b"-0", b"1\x00", b"\xff"),
)
SCORES = (
    b"0",
    b"-1",
    b"1.5",
    b"inf",
    b"-inf",
    b"1e300",
    b"-1e300",
    b"9007199254740992",
    b"9007199254740993",
    b"65536",
    b"5e-324",
)
VALUES = (
    *(b"", b"x", b"m" * 62, b"%s%n", b"\x00", b"\xfa", b"\xfa\x11", b"\xfa\x12" + bytes(7), b"\xfb\x01" + bytes(30)),
    *(
        b"\xfa\x11\x0b" + bytes(12) + b"\x00\x01a",
        b"\xfa\x11\x31" + b"\xff" * 40,
        b"{",
        b"{}",
        b'{"packetType":"PUBLISH"}',
    ),
    *(b'{"packetType":"PUBREL","packetId":7}', b'{"packetType" : "PUBLISH","packetId":"x","payload":{"a":[1]}}'),
    *(b'{"packetId":1,"packetId":2,"packetType":1}', b"LIMIT", b"EXPIRING", b"MESSAGES", b"1 1 0 0 1,", b"[" * 3000),
)
OWNERS = (b"bridge-1", b"bridge-2", b"", b"\xff", b"EPOCH")
SESSION_FIELDS = (
    *(b"round", b"sent", b"epoch", b"connected", b"expiry", b"lease", b"owner", b"other", b"expiring", b"window"),
    *(b"ends", b"shares", b"owner_lease", b"will_topic", b"will_payload", b"will_qos", b"will_due", b"will_delay"),
)
RETAINED_FIELDS = (b"topic", b"payload", b"qos", b"time", b"publisher", b"properties")
# Serials end at 2^53, which is about 65535 * 137441050656.
ROUNDS = (b"137438953472", b"137441050655", b"137441050656", b"137441050657", b"1", b"65536")
PRODUCER_LINES = (
    *(b"1 1 0 0 1,", b"9223372036854775807 -1 0 0 ", b"1 1 0 0 70000,-1,", b"2 9007199254740993 -1 -1 1,2,3,", b"x"),
    *(b"1 1 0 0 " + b"1," * 3000, b"1 1 0 0", b"3 99999999999999999999 0 0 1,", b"10 1 0 0 ,,,,"),
)
LIMITS = (
    *(b"holdmq.session-limit", b"holdmq.session-bytes", b"holdmq.session-ttl", b"holdmq.drain-timeout"),
    *(b"holdmq.max-sessions", b"holdmq.max-retained", b"holdmq.max-sessions-per-user"),
    *(b"holdmq.max-retained-per-user", b"holdmq.max-queue-bytes-per-user", b"holdmq.max-queue-bytes"),
)
RULES = (
    *(b"* hold=all last=on deliver=held", b"* hold=unheard", b"* hold=none", b"* hold=all maxlen=2 ttl=1 deliver=held"),
    *(
        b"ch* hold=all last=on maxlen=3",
        b'"x{y}z" hold=unheard last=on ttl=0 deliver=held',
        b"{* hold=all deliver=held",
    ),
    *(b"* hold=all last=on deliver=last maxlen=4294967295 ttl=3155760000", b"* hold=none last=on"),
)
BAD_RULES = (
    b"* hold=",
    b"*  hold=maybe",
    b'"',
    b'"\\',
    b"a maxlen=0",
    b"a ttl=99999999999999999999",
    b"\xff\x00",
    b"a b=c",
)


def framed(command: list[bytes]) -> list[bytes]:
    """The command as it may stand in a transaction: each name of a SUBSCRIBE would add an element to EXEC's reply."""
    if command[0] not in SUBSCRIBING:
        return command
    return command[:2] if len(command) > 1 else [b"PING"]


class Generator:
    """Makes commands.

    Args:
        seed: of the random number generator.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        # Rounds in which little is damaged come further; those in which much is, to stranger places.
        self._mutated = self.random.choice((0.02, 0.1, 0.3))
        self._stock = self.random.choice((0.03, 0.1, 0.3))
        self._history = self.random.choice((0.0, 0.1, 0.9))

    # ---- parts of commands ----

    def one(self, good: tuple[bytes, ...], bad: tuple[bytes, ...] = (), part: float = 0.06) -> bytes:
        """One of the good ones, now and then one of the bad ones."""
        return self.random.choice(bad if bad and self.random.random() < part else good)

    def key(self) -> bytes:
        """A session key."""
        key = b"{" + self.one(IDS) + b"}"
        if self.random.random() < 0.05:
            return self.random.choice([b"p:" + key, b"{" + b"k" * 1100 + b"}", b"%s" + key])
        return self.one((key,), BAD_KEYS, 0.03)

    def number(self) -> bytes:
        """A number, mostly a small one."""
        return self.one(NUMBERS, ODD_NUMBERS, 0.2)

    def topic(self) -> bytes:
        """The name of a topic."""
        return self.one(TOPICS, BAD_TOPICS)

    def filter(self) -> bytes:
        """A topic filter."""
        return self.one(FILTERS, BAD_FILTERS)

    def channel(self) -> bytes:
        """The name of a channel."""
        return self.one(CHANNELS)

    def value(self) -> bytes:
        """A payload or whatever stands in its place."""
        chance = self.random.random()
        if chance < 0.004:
            return b"B" * BIG
        if chance < 0.1:
            value = bytearray(self.one(VALUES))
            for _ in range(self.random.randrange(4)):
                at = self.random.randrange(len(value) + 1)
                value[at : at + self.random.randrange(2)] = self.random.randbytes(self.random.randrange(3))
            return bytes(value)
        return self.random.randbytes(self.random.randrange(40)) if chance < 0.2 else self.one(VALUES)

    def stored(self) -> bytes:
        """The name of a key that the module keeps."""
        session = b"{" + self.one(IDS) + b"}"
        match self.random.randrange(7):
            case 6:
                return b"holdmq_owner:" + self.one(OWNERS)
            case 0:
                return self.channel()
            case 1:
                return self.one((b"{%b}_last", b"%b:last", b"{%b}_last%%")) % self.channel()
            case 2:
                return b"{" + self.topic().replace(b"{", b"%7B").replace(b"}", b"%7D") + b"}_retained"
            case 3:
                return session + b"_messages_" + self.number()
            case _:
                return session + self.one(SUFFIXES)

    def some(self, make: Callable[[], bytes], most: int = 4) -> list[bytes]:
        """One or several."""
        return [make() for _ in range(1 + self.random.randrange(most))]

    def maybe(self, *options: tuple[bytes | Callable[[], bytes], ...]) -> list[bytes]:
        """Some of the options, each a word and what follows."""
        taken = [option for option in options if self.random.random() < 0.35]
        return [part() if callable(part) else part for option in taken for part in option]

    def epoch(self) -> list[bytes]:
        """The fencing epoch, which a generator cannot know: mostly none, or the one that is not checked."""
        return self.maybe((b"EPOCH", lambda: self.one((*(b"0",) * 6, b"1"), ODD_NUMBERS)))

    def reference(self) -> list[bytes]:
        """ZADD of a reference to a message, as the module keeps them, but at any serial."""
        key = self.key()
        return [b"ZADD", key + b"_messages", self.one((*SCORES, *NUMBERS)), key + b"_messages_" + self.number()]

    def fenced(self) -> list[bytes]:
        """A command with the session's current epoch, which only a script can know beforehand."""
        name = self.one((b"CLOSE", b"CLOSE", b"TOUCH", b"FETCH", b"ACK", b"DROP", b"SENT"))
        rest = {
            b"CLOSE": self.maybe(
                (b"EXPIRY", lambda: self.one((b"0", b"1", b"100"))), (b"SENT", self.number), (b"WILL",)
            ),
            b"FETCH": [b"WINDOW", self.number()],
            b"ACK": [*self.maybe((b"NEXT", self.number)), self.number()],
            b"SENT": [self.number()],
        }
        return [b"EVAL", WITH_EPOCH, b"1", self.key(), b"SESSION." + name, *rest.get(name, [])]

    # ---- commands ----

    def module_command(self) -> list[bytes]:
        """A command of the module, or a stock command that it makes persistent."""
        command = self.random.choice(HISTORY if self.random.random() < self._history else MODULE)(self)
        return self.mutated(command) if self.random.random() < self._mutated else command

    def stock_command(self) -> list[bytes]:
        """A stock command on the module's keys, or one that changes the whole server."""
        return self.random.choice(DAMAGE if self.random.random() < self._history else STOCK)(self)

    def mutated(self, command: list[bytes]) -> list[bytes]:
        """The command with its arguments damaged."""
        arguments = command[1:]
        for _ in range(1 + self.random.randrange(3)):
            at = self.random.randrange(len(arguments) + 1)
            match self.random.randrange(6):
                case 0:
                    del arguments[at : at + 1 + self.random.randrange(3)]
                case 1:
                    arguments[at:at] = arguments[at : at + 2]
                case 2:
                    arguments.insert(at, self.random.choice([*ODD_NUMBERS, b"EPOCH", b"LIMIT", b"COUNT", b"WINDOW"]))
                case 3:
                    arguments[at : at + 1] = [self.value()]
                case 4:
                    arguments[at : at + 1] = [self.random.choice([*BAD_KEYS, *BAD_TOPICS, *ODD_NUMBERS])]
                case _:
                    self.random.shuffle(arguments)
        return command[:1] + arguments

    def steps(self) -> list[Step]:
        """What one connection sends in one go: a command, several, a transaction or a script."""
        connection = self.random.choices(range(CONNECTIONS), WEIGHTS)[0]
        chance = self.random.random()
        if chance < 0.08:
            inner = [framed(self.command()) for _ in range(self.random.randrange(6))]
            end = self.random.choice([b"EXEC", b"EXEC", b"EXEC", b"DISCARD"])
            if connection % 2 == 0:
                inner = [command for command in inner if command[0] not in SUBSCRIBING]
            commands = [[b"MULTI"], *inner, [end]]
            if self.random.random() < 0.2:
                commands.insert(0, [b"WATCH", self.stored(), self.stored()])
        elif chance < 0.13:
            commands = [self.script()]
        else:
            commands = [self.command() for _ in range(1 + self.random.randrange(5))]
        return [(self.listener(connection, command), tuple(command)) for command in commands]

    def listener(self, connection: int, command: list[bytes]) -> int:
        """The connection itself, or one that may subscribe: with RESP2 there is not much else that it then may send."""
        return LISTENER if command[0] in SUBSCRIBING and connection % 2 == 0 else connection

    def command(self) -> list[bytes]:
        """Any command."""
        return self.stock_command() if self.random.random() < self._stock else self.module_command()

    def script(self) -> list[bytes]:
        """Commands inside a script, protected or not."""
        call = self.one((b"call", b"pcall"))
        body = b"local r; local i = 1; while i <= #ARGV do local n = tonumber(ARGV[i]); local a = {}; "
        body += (
            b"for j = 1, n do a[j] = ARGV[i + j] end; r = redis." + call + b"(unpack(a)); i = i + n + 1 end; return r"
        )
        arguments: list[bytes] = []
        for _ in range(1 + self.random.randrange(3)):
            command = self.command()
            arguments += [str(len(command)).encode(), *command]
        return [b"EVAL", body, b"0", *arguments]

    def batch(self, size: int = 12) -> list[Step]:
        """The steps between two looks at the server's health."""
        return [step for _ in range(size) for step in self.steps()]

    def policies(self) -> bytes:
        """A policy list."""
        return b"; ".join(self.some(lambda: self.one(RULES, BAD_RULES, 0.1)))

    def producer(self) -> list[bytes]:
        """A producer and its sequence."""
        return [b"PRODUCER", self.one((b"p1", b"p2", b"")), self.number()]

    def chunk(self) -> list[bytes]:
        """Sometimes a producer with the epoch and chunk of a publish."""
        return [*self.producer(), self.number()] if self.random.random() < 0.3 else []

    def many(self) -> list[bytes]:
        """TOPIC.MPUBLISH, sometimes by a producer, with numbers that mostly grow."""
        numbered = self.random.random() < 0.5
        number = self.random.randrange(20)
        head = [b"PRODUCER", b"many", b"1", b"%d" % number] if numbered else []
        words = []
        for _ in range(self.random.randrange(1, 9)):
            number += self.random.choice((1, 1, 1, 3, 0) if self.random.random() < 0.1 else (1,))
            topic = self.random.choice(TOPICS)
            record = core.Record(qos=number % 3, retain=number % 5 == 0, topic=topic, payload=self.value()[:9])
            words += [b"%d" % number] if numbered else []
            words.append(record.encode() if self.random.random() < 0.95 else self.value())
        return [b"TOPIC.MPUBLISH", *head, b"RECORD", *words]

    def pipelined(self) -> list[bytes]:
        """TOPIC.PIPELINE of publishes, most of them sound, sometimes cut or damaged."""
        commands = []
        for _ in range(1 + self.random.randrange(9)):
            command = [b"TOPIC.PUBLISH", self.topic(), self.value()[:99], b"QOS", self.one((b"1", b"1", b"0", b"2"))]
            command += self.maybe((b"FROM", lambda: self.one(IDS, BAD_KEYS)), (b"RETAIN",), (b"TTL", self.number))
            commands.append(encoded(*(self.mutated(command) if self.random.random() < 0.05 else command)))
        packed = b"".join(commands)
        if self.random.random() < 0.1:
            at = self.random.randrange(len(packed))
            packed = packed[:at] + self.random.choice((b"", self.value() + packed[at + 1 :]))
        return [b"TOPIC.PIPELINE", packed]

    def expiring(self) -> list[bytes]:
        """Pairs of seconds and payload."""
        return [
            b"EXPIRING",
            *(part for _ in range(3) for part in (self.one((b"1", b"", b"60"), ODD_NUMBERS), self.value())),
        ]

    def payloads(self) -> list[bytes]:
        """What follows the options of SESSION.ADD."""
        if self.random.random() < 0.15:
            return self.expiring()
        many = 40 if self.random.random() < 0.1 else 4
        return [*self.maybe((b"MESSAGES",)), *self.some(self.value, many)]

    def imported(self) -> list[bytes]:
        """What follows the options of SESSION.IMPORT."""
        count = self.random.randrange(6)
        rest = [b"MESSAGES", str(count).encode() if self.random.random() < 0.95 else self.number()]
        for _ in range(count):
            rest += [self.one(NUMBERS, ODD_NUMBERS), self.one((b"0", self.number()))]
            rest += [self.one((b"0", b"1", b"2")), self.number(), self.value()]
        return rest

    def will(self) -> list[bytes]:
        """A will with some of its options."""
        options = ((b"WILLQOS", lambda: self.one((b"0", b"1", b"2"), ODD_NUMBERS)), (b"WILLRETAIN",))
        more = ((b"WILLDELAY", lambda: self.one((b"0", b"1"), ODD_NUMBERS)), (b"WILLTTL", self.number))
        return [b"WILL", self.topic(), self.value(), *self.maybe(*options), *self.maybe(*more)]

    def subscriptions(self) -> list[bytes]:
        """Filters with their options."""
        return [
            part
            for _ in range(1 + self.random.randrange(4))
            for part in (self.filter(), self.one(OPTIONS, ODD_NUMBERS, 0.1))
        ]


WITH_EPOCH = b"""local epoch = redis.call('HGET', KEYS[1] .. '_session', 'epoch')
return redis.call(ARGV[1], KEYS[1], 'EPOCH', epoch or 0, unpack(ARGV, 2))"""

# fmt: off
MODULE: tuple[Maker, ...] = (
    lambda g: [b"SESSION.ADD", g.key(), *g.maybe((b"LIMIT", g.number), (b"TTL", g.number)),
               *([*g.producer(), *g.maybe((b"AFTER", g.number))] if g.random.random() < 0.3 else []), *g.payloads()],
    lambda g: [b"SESSION.ADD", g.key(), b"LIMIT", g.one((b"1", b"3", b"10")), *g.some(g.value, 12)],
    lambda g: [b"SESSION.IMPORT", g.key(), *g.maybe((b"MERGE",), (b"LIMIT", g.number), (b"LASTID", g.number)),
               *(g.producer() if g.random.random() < 0.2 else []), *g.imported()],
    lambda g: [b"SESSION.FETCH", g.key(), *g.epoch(), *g.maybe((b"AFTER", g.number), (b"COUNT", g.number),
               (b"BYTES", g.number)), *g.maybe((b"INFLIGHT",), (b"PACKED",))],
    lambda g: [b"SESSION.FETCH", g.key(), *g.epoch(), b"WINDOW", g.number(), *g.maybe((b"COUNT", g.number))],
    lambda g: [b"SESSION.ACK", g.key(), *g.epoch(), *g.maybe((b"NEXT", g.number)), *g.some(g.number, 6)],
    lambda g: [b"SESSION.RELEASE", g.key(), *g.epoch(), *g.some(g.number)],
    lambda g: [b"SESSION.RECEIVE", g.key(), *g.epoch(), g.number()],
    lambda g: [b"SESSION.COMPLETE", g.key(), *g.epoch(), *g.some(g.number)],
    lambda g: [b"SESSION.SENT", g.key(), *g.epoch(), *g.maybe((b"WINDOW", g.number)), g.number()],
    lambda g: [b"SESSION.LAST", g.key()],
    lambda g: [b"SESSION.INFO", g.key()],
    lambda g: [b"SESSION.DROP", g.key(), *g.epoch()],
    lambda g: [b"SESSION.OPEN", g.key(), b"OWNER", g.one(OWNERS), *g.maybe((b"CLEAN",), (b"EXPIRY", g.number),
               (b"LEASE", g.number), (b"IDENTITY", lambda: g.one(OWNERS)), (b"ADOPT", lambda: g.one(OWNERS)),
               (b"REPLACE",), (b"WINDOW", g.number),
               (b"USERSESSIONS", g.number), (b"USERBYTES", g.number), (b"USERRETAINED", g.number))],
    lambda g: [b"SESSION.OPEN", g.key(), b"OWNER", g.one(OWNERS), b"EXPIRY", g.one((b"0", b"1", b"100")),
               b"LEASE", g.one((b"1", b"100")), *g.will()],
    lambda g: [b"SESSION.OWNER", g.one(OWNERS), b"LEASE", g.one((b"0", b"1", b"100"), ODD_NUMBERS)],
    lambda g: [b"SESSION.LIST", *g.maybe((b"CURSOR", g.key), (b"COUNT", g.number), (b"CONNECTED",))],
    lambda g: [b"TOPIC.PUBLISH", g.topic(), g.value(), b"QOS", b"2", *g.maybe((b"TTL", lambda: b"1")),
               b"FROM", g.one(IDS), b"PACKET", g.number()],
    lambda g: [b"SESSION.INFO", b"{" + g.one(SHARES) + b"}"],
    lambda g: [b"SESSION.OPEN", g.key(), b"OWNER", g.one(OWNERS), b"EXPIRY", b"1000"],
    lambda g: [b"SESSION.OPEN", g.key(), b"OWNER", g.one(OWNERS), b"EXPIRY", b"1000"],
    lambda g: [b"SESSION.TOUCH", g.key(), b"EPOCH", g.number()],
    lambda g: [b"SESSION.CLOSE", g.key(), b"EPOCH", g.one((b"0", b"1"), ODD_NUMBERS),
               *g.maybe((b"EXPIRY", g.number), (b"SENT", g.number))],
    lambda g: g.fenced(),
    lambda g: [b"SESSION.SUBSCRIBE", g.key(), *g.epoch(), *g.maybe((b"ROUTES",)), *g.subscriptions()],
    lambda g: [b"SESSION.REPLAY", g.key(), *g.epoch(), *g.maybe((b"COUNT", g.number), (b"BYTES", g.number),
                                                                 (b"VISIT", g.number), (b"QUEUE", g.number))],
    lambda g: [b"SESSION.REPLAY", g.key()],
    lambda g: [b"HISTORY.STORE", b"h", b"FILTER", g.one((b"#", b"a/#", b"+")), *g.maybe((b"AGE", g.number))],
    lambda g: [b"HISTORY.STORE", b"h", b"FILTER", b"#"],
    lambda g: [b"HISTORY.UNSTORE", b"h"],
    lambda g: [b"SESSION.UNSUBSCRIBE", g.key(), *g.epoch(), *g.some(g.filter)],
    lambda g: [b"SESSION.SUBSCRIPTIONS", g.key()],
    lambda g: [b"TOPIC.PUBLISH", g.topic(), g.value(),
               *g.maybe((b"QOS", lambda: g.one((b"0", b"1", b"2"), ODD_NUMBERS)), (b"RETAIN",), (b"TTL", g.number)),
               *g.maybe((b"FROM", lambda: g.one(IDS, BAD_KEYS)), (b"PROPERTIES", g.value))],
    lambda g: [b"TOPIC.PUBLISH", g.topic(), g.value(), b"QOS", b"1", b"RETAIN"],
    lambda g: [b"TOPIC.RETAINED", g.filter(), *g.maybe((b"CURSOR", g.number), (b"COUNT", g.number))],
    lambda g: [b"TOPIC.GROUPS", *g.maybe((b"CURSOR", g.key), (b"COUNT", g.number))],
    lambda g: [b"CHANNEL.LIST", *g.maybe((b"CURSOR", g.key), (b"COUNT", g.number))],
    lambda g: [b"TOPIC.MATCH", g.topic(), *g.maybe((b"CURSOR", g.number), (b"COUNT", g.number))],
    lambda g: [b"CHANNEL.PUBLISH", g.channel(), g.value(), *g.chunk(), *g.maybe((b"AFTER", g.number))],
    lambda g: [b"CHANNEL.SPUBLISH", g.channel(), g.value(), *g.chunk(), *g.maybe((b"AFTER", g.number))],
    lambda g: [b"TOPIC.PUBLISH", g.topic(), g.value(), *g.chunk()],
    lambda g: [b"TOPIC.PUBLISH", g.topic(), g.value(), b"SLOTS", b"1", g.number(), g.number(),
               *g.maybe((b"FROM", lambda: g.one(IDS, BAD_KEYS)), (b"EPOCH", g.number)),
               b"HOME", b"0" * 40, g.number()],
    lambda g: [b"ROUTE.RESUME", g.number()],
    lambda g: g.many(),
    lambda g: g.pipelined(),
    lambda g: g.pipelined(),
    lambda g: [b"CHANNEL.LAST", g.channel()],
    lambda g: [b"CHANNEL.POLICY", g.channel()],
    lambda g: [b"CHANNEL.DRYRUN", b"START", *g.maybe((b"SECONDS", g.number), (b"POLICIES", g.value))],
    lambda g: [b"CHANNEL.DRYRUN", g.one((b"START", b"STOP", b"REPORT"))],
    lambda g: [b"CHANNEL.DRYRUN", b"REPORT", *g.maybe((b"CURSOR", g.value), (b"COUNT", g.number))],
    lambda g: [b"ROUTE.CHECK", g.key(), g.topic(), *g.epoch()],
    lambda g: [b"ROUTE.MCHECK", b"0" * 40, g.number(), g.key(), g.topic(), g.number(), g.number()],
    lambda g: [b"ROUTE.ADD", g.filter(), g.number()],
    lambda g: [b"ROUTE.CONFIRM", g.filter(), g.number(), g.number(), b"0" * 40, g.number()],
    lambda g: [b"HOLDMQ.CHECK"],
    lambda g: [b"PUBLISH", g.channel(), g.value()],
    lambda g: [b"SPUBLISH", g.channel(), g.value()],
    lambda g: [b"SUBSCRIBE", *g.some(g.channel)],
    lambda g: [b"SSUBSCRIBE", *g.some(g.channel)],
    lambda g: [b"PSUBSCRIBE", *g.some(lambda: g.one(PATTERNS))],
    lambda g: [g.one((b"UNSUBSCRIBE", b"SUNSUBSCRIBE")), *g.maybe((g.channel,), (g.channel,))],
    lambda g: [b"PUNSUBSCRIBE", *g.maybe((lambda: g.one(PATTERNS),))],
    lambda g: [g.one((b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"))],
)

COPY_BY_DUMP = b"""local d = redis.call('DUMP', KEYS[1])
if not d then return false end
return redis.call('RESTORE', KEYS[2], ARGV[1], d, 'REPLACE')"""

STOCK: tuple[Maker, ...] = (
    lambda g: [b"SET", g.stored(), g.one((g.value(), g.number())), *g.maybe((b"PX", g.number))],
    lambda g: [b"SET", b"{" + g.one(IDS) + b"}_last_packet_id", g.number()],
    lambda g: [b"HSET", g.stored(), g.value(), g.value()],
    lambda g: [b"HSET", b"{" + g.one(IDS) + b"}_session", g.one(SESSION_FIELDS),
               g.one((*ODD_NUMBERS, *NUMBERS, *SCORES))],
    lambda g: [b"HSET", b"{" + g.one(IDS) + b"}_session", b"round", g.one(ROUNDS)],
    lambda g: [b"HSET", b"{" + g.one(IDS) + b"}_producers", g.one((b"p1", b"p2")), g.one((*PRODUCER_LINES, g.value()))],
    lambda g: [b"HSET", b"{" + g.one(IDS) + b"}_subscriptions", g.filter(), g.number()],
    lambda g: [b"HSET", b"{" + g.one(TOPICS) + b"}_retained", g.one(RETAINED_FIELDS), g.value()],
    lambda g: [b"HDEL", g.stored(), g.one((*SESSION_FIELDS, *RETAINED_FIELDS, *FILTERS))],
    lambda g: [b"ZADD", g.stored(), g.one(SCORES), g.one((g.stored(), g.value()))],
    lambda g: g.reference(),
    lambda g: [b"ZADD", b"{" + g.one(IDS) + b"}_received", g.one(SCORES), g.number()],
    lambda g: [b"ZREMRANGEBYRANK", g.stored(), b"0", g.one((b"0", b"-1"))],
    lambda g: [b"RPUSH", g.stored(), *g.some(g.value)],
    lambda g: [b"LPOP", g.stored(), *g.maybe((g.number,))],
    lambda g: [b"LTRIM", g.stored(), g.number(), b"-1"],
    lambda g: [b"BLPOP", g.stored(), b"0.001"],
    lambda g: [b"SADD", g.stored(), g.value()],
    lambda g: [b"XADD", g.stored(), b"*", b"f", g.value()],
    lambda g: [b"APPEND", g.stored(), g.value()],
    lambda g: [b"SETRANGE", g.stored(), g.one((b"0", b"1", b"70000")), g.value()],
    lambda g: [b"INCR", g.stored()],
    lambda g: [g.one((b"DEL", b"UNLINK")), *g.some(g.stored)],
    lambda g: [g.one((b"RENAME", b"RENAMENX")), g.stored(), g.stored()],
    lambda g: [b"COPY", g.stored(), g.stored(), *g.maybe((b"REPLACE",), (b"DB", lambda: g.one((b"0", b"1"))))],
    lambda g: [b"MOVE", g.stored(), g.one((b"0", b"1"))],
    lambda g: [b"EXPIRE", g.stored(), g.number()],
    lambda g: [b"PEXPIRE", g.stored(), g.one((b"1", b"5", b"-1", b"50"))],
    lambda g: [b"PERSIST", g.stored()],
    lambda g: [b"RESTORE", g.stored(), b"0", g.value(), b"REPLACE"],
    lambda g: [b"EVAL", COPY_BY_DUMP, b"2", g.stored(), g.stored(), g.one((b"0", b"5", b"60000"))],
    lambda g: [b"SORT", g.stored(), b"BY", b"nosort", b"STORE", g.stored()],
    lambda g: [b"LRANGE", g.stored(), b"0", b"-1"],
    lambda g: [b"SELECT", g.one((b"0", b"0", b"0", b"1", b"2", b"99"))],
    lambda g: [b"CONFIG", b"SET", b"holdmq.policies", g.policies()],
    lambda g: [b"CONFIG", b"SET", b"holdmq.policies", g.policies()],
    lambda g: [b"CONFIG", b"SET", g.one(LIMITS), g.number()],
    lambda g: [b"CONFIG", b"SET", b"holdmq.intercept", g.one((b"yes", b"yes", b"no", b"x"))],
    lambda g: [b"CONFIG", b"SET", b"maxmemory", g.one((*(b"0",) * 8, b"1mb", b"4mb"))],
    lambda g: [b"CONFIG", b"SET", b"maxmemory-policy", g.one((b"noeviction", b"allkeys-random", b"volatile-ttl"))],
    lambda g: [b"CONFIG", b"SET", b"notify-keyspace-events", g.one((b"KEA", b""))],
    lambda g: [b"CLIENT", b"TRACKING", g.one((b"on", b"off"))],
    lambda g: [b"CLIENT", b"KILL", b"TYPE", g.one((b"pubsub", b"normal")), b"SKIPME", g.one((b"yes", b"no"))],
    lambda g: [b"CLIENT", b"NO-EVICT", g.one((b"on", b"off"))],
    lambda g: [b"INFO", b"everything"],
    lambda g: [b"MEMORY", b"USAGE", g.stored()],
    lambda g: [b"COMMAND", b"GETKEYS", *g.module_command()],
    lambda g: [g.one((b"FLUSHALL", b"FLUSHDB", *(b"PING",) * 6)), *g.maybe((lambda: g.one((b"ASYNC", b"SYNC")),))],
    lambda g: [b"SWAPDB", b"0", g.one((b"1", b"2"))],
    lambda g: g.one((b"DEBUG RELOAD", b"PING", b"PING", b"PING")).split(),
)
# fmt: on
