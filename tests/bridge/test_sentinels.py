"""What the bridge makes of its Sentinels, against scripted ones: events, events that were missed, dead connections."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from holdmq.address import Address, shown_address
from holdmq.sentinels import MAX_SENTINELS
from holdmq_bridge.base.target import Target
from holdmq_bridge.server import sentinels
from holdmq_bridge.server.sentinels import Sentinels

SERVICE = "holdmq"
TIMEOUT_S = 10.0
QUIET_S = 0.2  # without a word, before a Sentinel is sent a PING
FIRST, SECOND = ("127.0.0.1", 7001), ("127.0.0.1", 7002)

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.moves: list[Address] = []
        self.doubts: list[bool] = []

    def primary_in_doubt(self, *, doubt: bool) -> None:
        self.doubts.append(doubt)

    def primary_moved(self, address: Address) -> None:
        self.moves.append(address)


class Script:
    """A Sentinel that knows one service.

    Attributes:
        primary: what it calls the primary's address.
        state: the address in the primary's state: the old one while a failover is being completed.
        epoch: of its configuration.
        subscriptions: how often somebody has subscribed to its events.
        pings: how many it was sent.
        looks: how often it was asked for the state of the primary.
        is_failing_over: it has begun a failover, and has promoted nobody yet.
        is_mute: it says nothing any more on connections that were made before.
        answer: what it answers to every question of SENTINEL, in place of the truth; empty: the truth.
        services: that it watches.
        others: Sentinels that it knows.
    """

    def __init__(self) -> None:
        self.primary = self.state = FIRST
        self.epoch = 1
        self.subscriptions = self.pings = self.looks = 0
        self.is_failing_over = False
        self.answer = b""
        self.services = [SERVICE]
        self.others: list[Address] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[Writer] = []
        self._subscribed: list[Writer] = []
        self._mute: set[Writer] = set()

    async def start(self) -> None:
        """Listens, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes everything."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._writers, self._subscribed = [], []

    def fail_over(self) -> None:
        """Another primary, under a later epoch."""
        self.primary = self.state = SECOND
        self.epoch += 1
        self.is_failing_over = False

    def be_mute(self) -> None:
        """As a network that has forgotten the connections made so far."""
        self._mute = set(self._writers)

    def tell(self, event: str, text: str) -> None:
        """Announces something."""
        self.tell_bytes(event.encode(), text.encode())

    def tell_bytes(self, event: bytes, text: bytes) -> None:
        """The same of anything."""
        for writer in self._subscribed:
            if not writer.is_closing():
                writer.write(_push(b"pmessage", b"*", event, text))

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                words = await _command(reader)
                reply = self._reply(words, writer)
                if writer not in self._mute:
                    writer.write(reply)
        writer.close()

    def _reply(self, words: list[bytes], writer: Writer) -> bytes:
        name, rest = words[0].upper(), words[1:]
        if name == b"HELLO":
            return b"%1\r\n" + _bulk(b"proto") + b":3\r\n"
        if name == b"PING":
            self.pings += 1
            return b"+PONG\r\n"
        if name == b"PSUBSCRIBE":
            self.subscriptions += 1
            self._subscribed.append(writer)
            return b"".join(_push(b"psubscribe", pattern, b":%d" % at) for at, pattern in enumerate(rest, 1))
        if name == b"SENTINEL":
            return self.answer or self._answer(rest[0].upper())
        return b"+OK\r\n"

    def _answer(self, question: bytes) -> bytes:
        if question == b"MASTERS":
            return b"*%d\r\n" % len(self.services) + b"".join(
                _map({"name": name, "flags": "master"}) for name in self.services
            )
        if SERVICE not in self.services:
            return b"_\r\n" if question == b"GET-MASTER-ADDR-BY-NAME" else b"-ERR No such master with that name\r\n"
        if question == b"SENTINELS":
            return b"*%d\r\n" % len(self.others) + b"".join(
                _map({"ip": host, "port": port, "flags": "sentinel"}) for host, port in self.others
            )
        if question == b"GET-MASTER-ADDR-BY-NAME":
            host, port = self.primary
            return b"*2\r\n" + _bulk(host.encode()) + _bulk(b"%d" % port)
        self.looks += 1
        host, port = self.state
        flags = "master,failover_in_progress" if self.is_failing_over else "master"
        fields: dict[str, object] = {
            "name": SERVICE,
            "ip": host,
            "port": port,
            "flags": flags,
            "config-epoch": self.epoch,
        }
        return _map(fields)


def _map(fields: dict[str, object]) -> bytes:
    return b"%%%d\r\n" % len(fields) + b"".join(
        _bulk(name.encode()) + _bulk(str(value).encode()) for name, value in fields.items()
    )


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _push(*parts: bytes) -> bytes:
    """A number is written as :1."""
    return b">%d\r\n" % len(parts) + b"".join(
        part + b"\r\n" if part.startswith(b":") else _bulk(part) for part in parts
    )


async def _command(reader: Reader) -> list[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    words = []
    for _ in range(count):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


async def until(condition: Callable[[], bool]) -> None:
    """Waits for it."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 (of things that know no event)
            await asyncio.sleep(0.01)


def play(scene: Callable[[Sentinels, Listener, Script], Awaitable[None]]) -> None:
    """Runs a scene with one Sentinel, which is followed, and whose primary is in use."""

    async def run() -> None:
        script, listener = Script(), Listener()
        await script.start()
        followed = Sentinels((("127.0.0.1", script.port),), SERVICE, listener)
        followed.start()
        try:
            await until(lambda: script.subscriptions == 1)
            assert await followed.primary() == FIRST
            await scene(followed, listener, script)
        finally:
            await followed.stop()
            await script.stop()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence is noticed soon."""
    monkeypatch.setattr(sentinels, "_QUIET_S", QUIET_S, raising=False)


def test_a_promotion_is_followed_at_once() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        host, port = SECOND
        slave = f"slave {host}:{port} {host} {port} @ {SERVICE} {FIRST[0]} {FIRST[1]}"
        script.tell("+selected-slave", slave)
        await until(lambda: listener.doubts == [True])
        script.tell("+promoted-slave", slave)
        await until(lambda: listener.moves == [SECOND])
        assert listener.doubts == [True, False]
        assert await followed.primary() == SECOND

    play(scene)


def test_a_failover_while_no_sentinel_could_be_heard_is_noticed_when_one_is_heard_again() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        await script.stop()
        script.fail_over()
        await script.start()
        await until(lambda: listener.moves == [SECOND])
        assert await followed.primary() == SECOND

    play(scene)


def test_a_failover_behind_a_connection_that_has_died_without_a_word_is_noticed() -> None:
    async def scene(_followed: Sentinels, listener: Listener, script: Script) -> None:
        script.be_mute()
        script.fail_over()
        await until(lambda: script.subscriptions == 2)
        await until(lambda: listener.moves == [SECOND])

    play(scene)


def test_a_sentinel_that_has_nothing_to_say_is_asked_and_stays_followed() -> None:
    async def scene(_followed: Sentinels, listener: Listener, script: Script) -> None:
        await until(lambda: script.pings >= 3)
        assert script.subscriptions == 1
        assert listener.moves == []

    play(scene)


def test_a_sentinel_whose_configuration_is_not_later_moves_nobody() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        await script.stop()
        script.primary = script.state = SECOND  # under the same epoch
        await script.start()
        await until(lambda: script.subscriptions >= 2 and script.pings >= 1)
        assert listener.moves == []
        del followed

    play(scene)


def test_a_failover_that_was_not_heard_is_noticed_although_new_sentinels_count_epochs_from_0_again() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.epoch = 7
        assert await followed.primary() == FIRST
        await script.stop()
        script.epoch, script.pings = 0, 0  # as after SENTINEL REMOVE and SENTINEL MONITOR
        await script.start()
        await until(lambda: script.subscriptions >= 2 and script.pings >= 1)
        assert listener.moves == []
        await script.stop()
        script.fail_over()
        await script.start()
        await until(lambda: listener.moves == [SECOND])

    play(scene)


def test_another_primary_is_believed_after_a_while_if_all_sentinels_monitor_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "_LISTED_EVERY_S", QUIET_S)
    monkeypatch.setattr(sentinels, "_AGREED_S", 2 * QUIET_S, raising=False)

    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.epoch = 7
        assert await followed.primary() == FIRST
        other = Script()
        await other.start()
        try:
            script.others = [("127.0.0.1", other.port)]
            await until(lambda: other.subscriptions == 1)
            script.epoch, script.primary, script.state = 0, SECOND, SECOND
            looks = script.looks
            await until(lambda: script.looks > looks + 5)
            assert listener.moves == []  # the other Sentinel says something else
            other.epoch, other.primary, other.state = 0, SECOND, SECOND
            await until(lambda: listener.moves == [SECOND])
        finally:
            await other.stop()

    play(scene)


def test_a_failover_that_was_announced_before_its_sentinel_was_followed_puts_the_primary_in_doubt() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        await script.stop()
        script.is_failing_over = True
        await script.start()
        await until(lambda: listener.doubts == [True])
        assert await followed.primary() == FIRST
        host, port = SECOND
        script.fail_over()
        script.tell("+promoted-slave", f"slave {host}:{port} {host} {port} @ {SERVICE} {FIRST[0]} {FIRST[1]}")
        await until(lambda: listener.doubts == [True, False])
        assert listener.moves == [SECOND]

    play(scene)


def test_who_asks_for_the_primary_during_a_failover_is_told_that_it_is_in_doubt() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.is_failing_over = True
        assert await followed.primary() == FIRST
        assert listener.doubts == [True]
        script.is_failing_over = False
        script.tell("-failover-abort-not-elected", f"master {SERVICE} {FIRST[0]} {FIRST[1]}")
        await until(lambda: listener.doubts == [True, False])
        assert await followed.primary() == FIRST
        assert listener.doubts == [True, False]

    play(scene)


def test_a_failover_is_doubted_as_long_as_a_sentinel_says_that_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sentinels, "_DOUBT_S", QUIET_S)
    monkeypatch.setattr(sentinels, "_DOUBTED_AGAIN_S", QUIET_S)

    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.is_failing_over = True
        assert await followed.primary() == FIRST
        looks = script.looks
        await until(lambda: script.looks >= looks + 5)
        assert listener.doubts == [True]
        script.is_failing_over = False
        await until(lambda: listener.doubts == [True, False])

    play(scene)


def test_a_failover_that_never_ends_is_doubted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinels, "_DOUBT_S", QUIET_S)
    monkeypatch.setattr(sentinels, "_LONGEST_DOUBT_S", QUIET_S)

    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.is_failing_over = True
        assert await followed.primary() == FIRST
        await until(lambda: listener.doubts == [True, False])
        assert await followed.primary() == FIRST
        assert listener.doubts == [True, False]
        script.is_failing_over = False
        assert await followed.primary() == FIRST
        script.is_failing_over = True  # the next one
        assert await followed.primary() == FIRST
        assert listener.doubts == [True, False, True]

    play(scene)


def test_the_primary_is_the_promoted_one_before_all_replicas_follow_it() -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.fail_over()
        script.state, script.is_failing_over = FIRST, True
        assert await followed.primary() == SECOND
        assert listener.doubts == []

    play(scene)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"-ERR No such master with that name\r\n", "No such master with that name"),
        (b"$-1\r\n", "answered"),
        (b"-NOAUTH Authentication required.\r\n", "Authentication required."),
        (b"_\r\n", "answered"),
        (b"*1\r\n$9\r\n127.0.0.1\r\n", "answered"),
        (b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n", "answered"),
        (b"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n65536\r\n", "answered"),
        (b"*2\r\n$0\r\n\r\n$4\r\n6379\r\n", "answered"),
        (b":7\r\n", "answered"),
    ],
)
def test_what_a_sentinel_said_in_place_of_an_address_is_named(answer: bytes, text: str) -> None:
    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        script.answer = answer
        with pytest.raises(OSError, match=r"no Sentinel names a primary of 'holdmq'") as refused:
            await followed.primary()
        assert f"127.0.0.1:{script.port}" in str(refused.value)
        assert text in str(refused.value)
        script.answer = b""
        assert await followed.primary() == FIRST
        assert listener.moves == []

    play(scene)


def test_what_a_sentinel_watches_is_named_if_the_service_is_unknown_to_it() -> None:
    async def scene(followed: Sentinels, _listener: Listener, script: Script) -> None:
        script.services = ["one", "two"]
        with pytest.raises(OSError, match=r"no Sentinel names a primary of 'holdmq'") as refused:
            await followed.primary()
        assert "it watches 'one', 'two'" in str(refused.value)
        script.services = [f"s{number}" for number in range(1000)]
        with pytest.raises(OSError, match=r"it watches 's0', .* and 992 others\)"):
            await followed.primary()
        script.services = []
        with pytest.raises(OSError, match="it watches no service"):
            await followed.primary()

    play(scene)


def test_a_sentinel_that_does_not_know_the_service_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdmq.bridge")
    monkeypatch.setattr(sentinels, "_LISTED_EVERY_S", QUIET_S)

    async def scene(followed: Sentinels, listener: Listener, script: Script) -> None:
        itself = ("127.0.0.1", script.port)
        await until(lambda: followed.followed() == {itself})
        script.services = ["another"]
        await until(lambda: script.subscriptions >= 4)  # it is tried again and again
        assert followed.followed() == set()
        assert caplog.messages.count("a Sentinel cannot be followed") == 1
        assert "a Sentinel is followed again" not in caplog.messages
        script.services = [SERVICE]
        script.fail_over()
        await until(lambda: listener.moves == [SECOND])
        await until(lambda: followed.followed() == {itself})
        assert "a Sentinel is followed again" in caplog.messages

    play(scene)


def test_what_is_not_text_does_not_end_the_following() -> None:
    async def scene(_followed: Sentinels, listener: Listener, script: Script) -> None:
        script.tell_bytes(b"+switch-master", b"\xff 127.0.0.1 1 127.0.0.1 2")  # of another service
        await until(lambda: script.subscriptions == 2)
        script.fail_over()
        script.tell("+switch-master", f"{SERVICE} {FIRST[0]} {FIRST[1]} {SECOND[0]} {SECOND[1]}")
        await until(lambda: listener.moves == [SECOND])

    play(scene)


def test_a_sentinel_that_is_gone_and_that_no_other_one_lists_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinels, "_LISTED_EVERY_S", QUIET_S)
    monkeypatch.setattr(sentinels, "_QUIET_S", 5 * QUIET_S)  # a busy machine makes nobody seem gone

    async def scene(followed: Sentinels, _listener: Listener, script: Script) -> None:
        other, again = Script(), Script()
        await other.start()
        await again.start()
        try:
            former, later = ("127.0.0.1", other.port), ("127.0.0.1", again.port)
            script.others = [former]
            await until(lambda: former in followed.followed())
            script.others = []
            pings = other.pings
            await until(lambda: other.pings > pings)
            assert former in followed.followed()  # nobody lists it, but it lives
            await other.stop()
            script.others = [later]  # it has come back there
            await until(lambda: followed.followed() == {("127.0.0.1", script.port), later})
            await until(lambda: former not in followed.known())
            await other.start()
            script.others = [later, former]
            await until(lambda: former in followed.followed())
            await script.stop()  # one of the URL is never forgotten
            await until(lambda: ("127.0.0.1", script.port) not in followed.followed())
            assert ("127.0.0.1", script.port) in followed.known()
        finally:
            await other.stop()
            await again.stop()

    play(scene)


def test_no_more_than_so_many_sentinels_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinels, "_LISTED_EVERY_S", QUIET_S)

    async def scene(followed: Sentinels, _listener: Listener, script: Script) -> None:
        script.others = [("127.0.0.1", 1 + number) for number in range(2 * MAX_SENTINELS)]
        await until(lambda: len(followed.known()) > 1)
        assert len(followed.known()) == MAX_SENTINELS

    play(scene)


@pytest.mark.parametrize(
    "text", ["", "holdmq", f"{SERVICE} 127.0.0.1 7001 127.0.0.1 port", f"slave x 127.0.0.1 0x7 @ {SERVICE} a b"]
)
def test_an_announcement_that_cannot_be_understood_is_ignored(text: str) -> None:
    async def scene(_followed: Sentinels, listener: Listener, script: Script) -> None:
        script.tell("+switch-master", text)
        script.tell("+promoted-slave", text)
        script.tell("+switch-master", f"{SERVICE} {FIRST[0]} {FIRST[1]} {SECOND[0]} {SECOND[1]}")
        await until(lambda: listener.moves == [SECOND])
        assert script.subscriptions == 1

    play(scene)


def test_addresses_of_ipv6_are_shown_in_brackets() -> None:
    assert shown_address(("::1", 6379)) == "[::1]:6379"
    assert shown_address(FIRST) == "127.0.0.1:7001"
    assert str(Target.parse("redis://[::1]:6379/1")) == "[::1]:6379/1"
