"""The fuzzer of the guest: the same random commands to a stock server, and to one with the module.

The module sleeps at first, and holds every channel from some step on.

The application's keys have the names of channels.  Every reply, push and message of every connection must be that of
the stock server.  What is not sent or compared, because a held message may show there (docs/existing-server.md):
LRANGE, LLEN and LINDEX, and whatever names a key that begins with `holdmq:`.

    python -m tests.fuzz.guest --seconds 300 --server redis-7.0         fuzz
    python -m tests.fuzz.guest --seed 17 --server valkey-9.1            one run again
"""

import argparse
import random
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hiredis

from tests.support import Server
from tests.support.raw import encoded
from tests.support.servers import KINDS, ServerKind

Word = str | bytes | int
Command = list[Word]

STEPS_A_RUN = 400
ANSWER_S = 5.0
DATABASES = 3
NAMES: tuple[Word, ...] = ("jobs", "events", "{tag}:wait", "paused", b"\x00\xff{", "")
POLICIES = ("* deliver=none", "* hold=all last=on deliver=none", "* hold=none last=on deliver=none maxlen=1")
KEY_EVENTS = "notify-keyspace-events"
CONFIG = (
    *("enable-debug-command yes", f"{KEY_EVENTS} KEA", "save ''", "hz 100", "list-max-listpack-size 4"),
    "databases 3",
)
ASLEEP = ('holdmq.policies ""',)
LIMITED = ("limited", "on", "nopass", "~j*", "~e*", "resetchannels", "&e*", "+@all", "-@dangerous")
LIBRARY = (
    "#!lua name=guest\n"
    "redis.register_function('run', function(keys, args) return redis.pcall(unpack(args)) end)\n"
    "redis.register_function('publish', function(keys, args) "
    "redis.call('PUBLISH', keys[1], 'f') return redis.pcall(unpack(args)) end)\n"
)
RESP3 = (1, 3)
BLOCKED = (4, 5)  # they alone send commands that block
SUBSCRIBED = (6, 7)
LIMITED_LINE = 2
LINES = 8
SILENT = (["CLIENT", "REPLY", "SKIP"],)


class Finding(AssertionError):  # noqa: N818 - it is what a fuzzer is there for
    """A reply differs."""


class Generator:
    """Random commands of an application.

    Args:
        choose: the random numbers.
        kind: the server's.
    """

    def __init__(self, choose: random.Random, kind: ServerKind) -> None:
        self._choose = choose
        self._is_new = not kind.name.startswith("redis-7.0")

    def step(self) -> tuple[int, Command]:
        """A connection, and what it sends."""
        line = self._choose.choices(range(LINES), (6, 6, 3, 6, 2, 2, 1, 1))[0]
        if line in BLOCKED:
            return line, self._pick(self._blocking)
        if line in SUBSCRIBED:
            return line, self._pick(self._subscribing)
        return line, self._pick(self._any)

    def _any(self) -> list[Command]:
        kinds = (self._strings, self._lists, self._others, self._keys, self._publishing, self._scripts)
        more = (self._transactions, self._connections, self._databases)
        return self._choose.choices((*kinds, *more), (3, 6, 5, 5, 6, 4, 3, 1, 1))[0]()

    def _pick(self, of: Any) -> Command:
        return list(self._choose.choice(of()))

    def _name(self) -> Word:
        return self._choose.choice(NAMES)

    def _value(self) -> str:
        return f"v{self._choose.randrange(5)}"

    def _strings(self) -> list[Command]:
        n, m, v = self._name(), self._name(), self._value()
        return [
            ["SET", n, v], ["SET", n, v, "NX"], ["SET", n, v, "XX", "GET"], ["SET", n, v, "KEEPTTL"], ["SETNX", n, v],
            ["GET", n], ["GETDEL", n], ["GETEX", n, "PERSIST"], ["GETSET", n, v], ["APPEND", n, "x"], ["STRLEN", n],
            ["MSET", n, v, m, v], ["MSETNX", n, v, m, v], ["MGET", n, m], ["SETRANGE", n, 3, v], ["GETRANGE", n, 0, 3],
            ["INCR", n], ["INCRBYFLOAT", n, "1.5"], ["SETBIT", n, 9, 1], ["BITCOUNT", n], ["BITOP", "NOT", n, m],
            ["BITFIELD", n, "INCRBY", "u8", 0, 1], ["PFADD", n, v], ["PFCOUNT", n, m], ["PFMERGE", n, m],
            ["SETEX", n, 4000, v], ["LCS", n, m], ["SET", n, v, "EXAT", 4102444800],
        ]  # fmt: skip

    def _lists(self) -> list[Command]:
        n, m, v = self._name(), self._name(), self._value()
        return [
            ["LPUSH", n, v], ["RPUSH", n, v, "w"], ["LPUSHX", n, v], ["RPUSHX", n, v], ["LPOP", n], ["RPOP", n, 2],
            ["LMOVE", n, m, "LEFT", "RIGHT"], ["RPOPLPUSH", n, m], ["LINSERT", n, "BEFORE", v, "x"], ["LREM", n, 1, v],
            ["LSET", n, 0, v], ["LPOS", n, v], ["LTRIM", n, 0, 2], ["LMPOP", 2, n, m, "LEFT"],
            ["SORT", n, "ALPHA"], ["SORT", n, "BY", "nosort", "STORE", m], ["SORT_RO", n, "ALPHA"],
            ["BLPOP", n, m, "0.001"], ["BRPOP", n, "0.001"], ["BLMOVE", n, m, "LEFT", "LEFT", "0.001"],
            ["BLMPOP", "0.001", 1, n, "RIGHT"],
        ]  # fmt: skip

    def _others(self) -> list[Command]:
        n, m, v = self._name(), self._name(), self._value()
        return [
            ["ZADD", n, 1, v], ["ZADD", n, "INCR", 1, v], ["ZRANGE", n, 0, -1], ["ZRANGESTORE", n, m, 0, -1],
            ["ZPOPMIN", n], ["BZPOPMIN", n, "0.001"], ["ZUNIONSTORE", n, 2, n, m], ["ZREM", n, v], ["ZCARD", n],
            ["ZREMRANGEBYRANK", n, 0, 0], ["ZMPOP", 1, n, "MIN"],
            ["HSET", n, "f", v], ["HSETNX", n, "f", v], ["HGETALL", n], ["HDEL", n, "f"], ["HINCRBY", n, "i", 1],
            ["SADD", n, "a"], ["SREM", n, "a"], ["SMOVE", n, m, "a"], ["SINTERSTORE", n, n, m], ["SCARD", n],
            ["SISMEMBER", n, "a"], ["SPOP", n], ["XLEN", n],
            ["XADD", n, "NOMKSTREAM", "99-1", "f", v],
            ["XADD", n, "MAXLEN", 3, f"{self._choose.randrange(1, 9)}-1", "f", v],
            ["XREAD", "COUNT", 1, "STREAMS", n, 0], ["XRANGE", n, "-", "+"], ["XTRIM", n, "MAXLEN", 1],
            ["XGROUP", "CREATE", n, "g", 0, "MKSTREAM"], ["XREADGROUP", "GROUP", "g", "c", "STREAMS", n, ">"],
            ["XACK", n, "g", "1-1"], ["XDEL", n, "1-1"], ["XREAD", "BLOCK", 1, "STREAMS", n, "$"],
            ["GEOADD", n, 1, 1, v], ["GEOSEARCHSTORE", n, m, "FROMLONLAT", 1, 1, "BYRADIUS", 9, "km"],
        ]  # fmt: skip

    def _keys(self) -> list[Command]:
        n, m = self._name(), self._name()
        db = self._choose.randrange(DATABASES)
        return [
            ["DEL", n], ["UNLINK", n, m], ["EXISTS", n, m, n], ["TYPE", n], ["TOUCH", n], ["RENAME", n, m],
            ["RENAMENX", n, m], ["COPY", n, m], ["COPY", n, m, "REPLACE"], ["COPY", n, m, "DB", db], ["MOVE", n, db],
            ["PERSIST", n], ["EXPIRE", n, 4000], ["EXPIRE", n, 4000, "NX"], ["PEXPIREAT", n, 1],
            ["EXPIREAT", n, 4102444800],
            ["EXPIRETIME", n], ["OBJECT", "ENCODING", n], ["DUMP", n], ["MEMORY", "USAGE", n],
            ["DEBUG", "DIGEST-VALUE", n],
            ["KEYS", n], ["KEYS", "jo*"], ["RESTORE", n, 0, "bad"], ["WATCH", n], ["WATCH", n, m], ["UNWATCH"],
        ]  # fmt: skip

    def _publishing(self) -> list[Command]:
        n, v = self._name(), self._value()
        return [
            ["PUBLISH", n, v], ["PUBLISH", n, v], ["PUBLISH", n, ""], ["publish", n, v], ["SPUBLISH", n, v],
            ["PUBLISH", n], ["PUBLISH", n, v, v], ["PUBLISH", "unused", v],
            ["PUBSUB", "NUMSUB", n], ["PUBSUB", "NUMPAT"],
            ["PUBSUB", "SHARDNUMSUB", n],
        ]  # fmt: skip

    def _scripts(self) -> list[Command]:
        n, m = self._name(), self._name()
        lists = (self._strings, self._lists, self._others, self._keys, self._publishing)
        inner = self._pick(self._choose.choice(lists))
        publishes = "redis.call('PUBLISH', KEYS[1], 'e') return redis.pcall(unpack(ARGV))"
        return [
            ["EVAL", "return redis.pcall(unpack(ARGV))", 2, n, m, *inner],
            ["EVAL", publishes, 1, n, *inner],
            ["EVAL", f"redis.call('SPUBLISH', KEYS[1], 'e') {publishes}", 1, n, *inner],
            ["EVAL", "redis.setresp(3) " + publishes, 1, n, *inner],
            ["EVAL", "return redis.call('PUBLISH', KEYS[1], ARGV[1])", 1, n, "m"],
            ["EVAL_RO", "return redis.pcall(unpack(ARGV))", 1, n, *inner],
            ["FCALL", "run", 1, n, *inner], ["FCALL", "publish", 1, n, *inner], ["FCALL_RO", "run", 1, n, "GET", n],
            ["EVALSHA", "0" * 40, 1, n],
        ]  # fmt: skip

    def _transactions(self) -> list[Command]:
        return [["MULTI"], ["EXEC"], ["EXEC"], ["DISCARD"]]

    def _connections(self) -> list[Command]:
        n = self._name()
        commands: list[Command] = [
            ["CLIENT", "TRACKING", "OFF"], ["CLIENT", "TRACKING", "ON"], ["CLIENT", "TRACKING", "ON", "NOLOOP"],
            ["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "jo", "PREFIX", "ev"], ["CLIENT", "CACHING", "YES"],
            ["CLIENT", "GETNAME"], ["CLIENT", "SETNAME", "a"], ["CLIENT", "REPLY", "SKIP"], ["ECHO", n],
            ["PING"], ["PING", n],
            ["CLIENT", "NO-EVICT", "ON"], ["ACL", "WHOAMI"], ["NOSUCH", n], ["COMMAND", "GETKEYS", "PUBLISH", n, "m"],
        ]  # fmt: skip
        if self._is_new:
            commands += [["CLIENT", "NO-TOUCH", "ON"], ["CLIENT", "NO-TOUCH", "OFF"]]
        return commands

    def _databases(self) -> list[Command]:
        a, b = self._choose.randrange(DATABASES), self._choose.randrange(DATABASES)
        return [
            ["SELECT", a], ["SELECT", a], ["SELECT", a], ["SWAPDB", a, b], ["FLUSHDB"], ["FLUSHALL", "ASYNC"],
            ["DEBUG", "RELOAD"], ["FLUSHDB", "SYNC"], ["ACL", "SETUSER", *LIMITED], ["ACL", "SETUSER", "limited", "&*"],
            ["ACL", "SETUSER", "limited", "-publish"], ["ACL", "SETUSER", "limited", "reset", *LIMITED[1:]],
        ]  # fmt: skip

    def _blocking(self) -> list[Command]:
        n, m = self._name(), self._name()
        return [
            ["BLPOP", n, m, "0.05"], ["BRPOP", n, "0.05"], ["BLMOVE", n, m, "LEFT", "RIGHT", "0.05"],
            ["BZPOPMAX", n, "0.05"], ["XREAD", "BLOCK", 50, "STREAMS", n, "$"], ["BLMPOP", "0.05", 2, n, m, "LEFT"],
            ["SELECT", self._choose.randrange(DATABASES)],
        ]  # fmt: skip

    def _subscribing(self) -> list[Command]:
        n, m = self._name(), self._name()
        return [
            ["SUBSCRIBE", n], ["SUBSCRIBE", n, m], ["UNSUBSCRIBE", n], ["UNSUBSCRIBE", m, n], ["PSUBSCRIBE", "j*"],
            ["PUNSUBSCRIBE", "j*"], ["SSUBSCRIBE", n], ["SUNSUBSCRIBE", n], ["PSUBSCRIBE", "__key*__:*"], ["PING"],
            ["PUNSUBSCRIBE", "__key*__:*"], ["GET", n], ["PUBLISH", n, "m"] if self._is_new else ["PING"],
        ]  # fmt: skip


def _plain(value: Any) -> Any:
    """A reply that can be compared and shown."""
    if isinstance(value, hiredis.PushNotification):
        return ("push", *map(_plain, value))
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, set):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return {repr(key): _plain(part) for key, part in value.items()}
    return repr(value) if isinstance(value, hiredis.ReplyError) else value


def _concerns_held(value: Any) -> bool:
    """A key event, or an invalidation, of a key in which a message is held."""
    return b"holdmq:" in repr(value).encode()


class Line:
    """A connection to one of the servers.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S)
        self._reader = hiredis.Reader()
        self.got: list[Any] = []

    def send(self, command: Sequence[Word]) -> None:
        self._socket.sendall(encoded(*command))

    def read(self, timeout_s: float) -> bool:
        """Take what has come.  False if nothing came within this time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return False
        data = self._socket.recv(1 << 18)
        if not data:
            raise Finding("the server closed a connection")
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if not _concerns_held(reply):
                self.got.append(_plain(reply))
        return True

    def close(self) -> None:
        self._socket.close()


class Pair:
    """The same connection to both servers."""

    def __init__(self, ours: Server, theirs: Server) -> None:
        self.lines = (Line(ours.port), Line(theirs.port))

    def send(self, command: Sequence[Word]) -> None:
        for line in self.lines:
            line.send(command)

    def agree(self, at_least: int) -> None:
        """Read until both have this number of new replies and the same; clear them.

        Raises:
            Finding: they are not the same.
        """
        end = time.monotonic() + ANSWER_S
        while True:
            mine, other = (line.got for line in self.lines)
            if mine == other and len(mine) >= at_least:
                self.clear()
                return
            if time.monotonic() > end:
                raise Finding(f"with the module {mine!r}, without it {other!r}")
            for line in self.lines:
                line.read(0.001)

    def clear(self) -> None:
        for line in self.lines:
            line.got.clear()

    def close(self) -> None:
        for line in self.lines:
            line.close()


def run(ours: Server, theirs: Server, seed: int, steps: int = STEPS_A_RUN) -> None:
    """One run on two running servers.  The module of the first is asleep at the start, and gets its policy on the way.

    Raises:
        Finding: a reply differs; the text has the last commands.
    """
    choose = random.Random(seed)
    policy, set_at = choose.choice(POLICIES), choose.choice((0, choose.randrange(steps)))
    ours.restart()
    for server in (ours, theirs):
        client = server.client()
        client.flushall()
        client.execute_command("FUNCTION", "FLUSH")
        client.execute_command("FUNCTION", "LOAD", LIBRARY)
        client.execute_command("ACL", "SETUSER", "limited", "reset", *LIMITED[1:])
    *pairs, control = [Pair(ours, theirs) for _ in range(LINES + 1)]
    history: list[str] = []
    try:
        _prepare(pairs)
        generator = Generator(choose, ours.kind)
        waiting: set[int] = set()
        for step in range(steps):
            if step == set_at:
                history.append(f"policy {policy}")
                ours.client().config_set("holdmq.policies", policy)
            line, command = generator.step()
            history.append(f"{line} {command!r}")
            _take_step(pairs, control, waiting, line, command)
    except Finding as finding:
        raise Finding(f"seed {seed}: {finding}\n" + "\n".join(history[-25:])) from None
    finally:
        for pair in (*pairs, control):
            pair.close()


def _take_step(pairs: Sequence[Pair], control: Pair, waiting: set[int], line: int, command: Command) -> None:
    """Send a command on both servers, and compare what every connection gets.  `waiting`: those that may be blocked."""
    if line in waiting:
        pairs[line].agree(1)
        waiting.discard(line)
    pairs[line].send(command)
    if line in BLOCKED:
        waiting.add(line)
        control.send(["PING"])  # when it is answered, both servers have read the command before
        control.agree(1)
    elif command in SILENT:
        pairs[line].send(["PING"])
        pairs[line].send(["PING"])
        pairs[line].agree(1)
    else:
        pairs[line].agree(1)
    for other, pair in enumerate(pairs):
        if other not in waiting and other != line:
            pair.agree(0)


def _prepare(pairs: Sequence[Pair]) -> None:
    """Logs in; the application has used all names for lists, in all databases."""
    first = pairs[0]
    for db in range(DATABASES):
        commands: list[Command] = [
            ["SELECT", db],
            *(["RPUSH", name, "x"] for name in NAMES),
            *(["DEL", n] for n in NAMES),
        ]
        for command in commands:
            first.send(command)
        first.agree(len(commands))
    first.send(["SELECT", 0])
    first.agree(1)
    for line in RESP3:
        pairs[line].send(["HELLO", 3, "SETNAME", "x"])
        for connection in pairs[line].lines:
            while not connection.got:
                connection.read(ANSWER_S)
        pairs[line].clear()  # names the server's modules and the connection's number
    pairs[LIMITED_LINE].send(["AUTH", "limited", "any"])
    pairs[LIMITED_LINE].agree(1)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="one run with this seed")
    parser.add_argument("--server", default="valkey-9.1", help="valkey-9.1, redis-7.0, ...")
    options = parser.parse_args()
    kind = next(kind for kind in KINDS if kind.name == options.server)
    runs = found = 0
    with tempfile.TemporaryDirectory() as folder:
        ours = Server(kind, Path(folder) / "ours", config=[*CONFIG, *ASLEEP])
        theirs = Server(kind, Path(folder) / "theirs", module=False, config=CONFIG)
        try:
            ours.start()
            theirs.start()
            end = time.monotonic() + options.seconds
            seeds = iter([options.seed]) if options.seed is not None else iter(range(int(time.time()) * 1000, 1 << 62))
            for seed in seeds:
                runs += 1
                try:
                    run(ours, theirs, seed)
                    ours.check_indexes()
                except AssertionError as error:
                    found += 1
                    print(error, flush=True)
                if time.monotonic() > end:
                    break
        finally:
            ours.close()
            theirs.close()
    print(f"{options.server}: {runs} runs, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
