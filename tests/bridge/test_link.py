"""The link to the server, against a scripted server: order, cuts, answers that make no sense."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hiredis import ReplyError

from holdmq_bridge.counters import Counters
from holdmq_bridge.link import Link
from holdmq_bridge.request import Kind, Reply, Request
from holdmq_bridge.settings import Settings

GREETING = b"%1\r\n$5\r\nproto\r\n:3\r\n" + b":0\r\n"  # the replies to HELLO and to the probe
TIMEOUT_S = 10.0


class Listener:
    """Notes what the link tells."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.changed = asyncio.Event()

    def _note(self, *what: Any) -> None:
        self.heard.append(what)
        self.changed.set()

    def on_reply(self, request: Request, reply: Reply) -> None:
        self._note("reply", request.owner, reply if not isinstance(reply, ReplyError) else str(reply))

    def on_message(self, channel: bytes, payload: bytes) -> None:
        self._note("message", channel, payload)

    def on_chunk(self) -> None:
        pass

    def before_flush(self) -> None:
        pass

    def on_up(self) -> None:
        self._note("up")

    def on_down(self) -> None:
        self._note("down")

    def on_relief(self) -> None:
        self._note("relief")

    async def until(self, *what: Any) -> None:
        """Waits until this was told."""
        async with asyncio.timeout(TIMEOUT_S):
            while what not in self.heard:
                self.changed.clear()
                await self.changed.wait()


class Script:
    """A server that reads commands and lets the test answer in bytes."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await self.connections.put((reader, writer))

    async def greet(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Takes the next connection and answers its greeting."""
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await self.connections.get()
            await reader.readuntil(b"{holdmq-bridge-probe}\r\n")
        writer.write(GREETING)
        return reader, writer


def request(owner: str, *arguments: str) -> Request:
    return Request(owner, Kind.PUBLISH, arguments)


def play(scene: Callable[[Link, Listener, Script], Awaitable[None]], **settings: Any) -> None:
    """Runs a scene with a link that connects to a script."""

    async def run() -> None:
        script = Script()
        await script.start()
        listener = Listener()
        options = {"retry_first_s": 0.01, "retry_max_s": 0.05, **settings}
        link = Link(Settings(redis=f"redis://127.0.0.1:{script.port}", **options), Counters(), listener, "test")
        task = asyncio.create_task(link.run())
        try:
            await scene(link, listener, script)
        finally:
            task.cancel()
            await asyncio.wait([task])
            link.close()
            await script.stop()

    asyncio.run(run())


def test_replies_and_pushes_are_told_in_their_order_wherever_they_are_cut() -> None:
    answers = (
        b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
        b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nm1\r\n"
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n"
        b":1\r\n"
        b">3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$2\r\nm2\r\n"
        b"-OOM no memory\r\n"
        b"#f\r\n"
    )
    expected = [
        ("message", b"a", b"m1"),
        ("reply", "one", 1),
        ("message", b"b", b"m2"),
        ("reply", "two", "OOM no memory"),
        ("reply", "three", False),
    ]

    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        for cut in range(1, len(answers)):
            listener.heard.clear()
            link.subscribe([b"a", b"b"])
            for owner in ("one", "two", "three"):
                link.send(request(owner, "X", f"{cut}-{owner}"))
            await reader.readuntil(f"{cut}-three\r\n".encode())
            writer.write(answers[:cut])
            await asyncio.sleep(0)
            writer.write(answers[cut:])
            await listener.until("reply", "three", False)
            assert listener.heard == expected, cut

    play(scene)


def test_commands_of_one_iteration_leave_in_one_write_and_in_order() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, _writer = await script.greet()
        await listener.until("up")
        for number in range(100):
            link.send(request("x", "SET", str(number)))
        data = await reader.readuntil(b"$2\r\n99\r\n")
        assert data == b"".join(b"*2\r\n$3\r\nSET\r\n$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(100))

    play(scene)


def test_after_a_loss_the_link_comes_back_and_old_replies_are_forgotten() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        link.send(request("lost", "X", "lost"))
        await reader.readuntil(b"lost\r\n")
        writer.close()
        await listener.until("down")
        assert not link.up
        listener.heard.clear()
        reader, writer = await script.greet()
        await listener.until("up")
        link.send(request("new", "X", "new"))
        await reader.readuntil(b"new\r\n")
        writer.write(b":7\r\n")
        await listener.until("reply", "new", 7)
        assert ("reply", "lost", 7) not in listener.heard

    play(scene)


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b":1\r\n", id="a reply that nothing asked for"),
        pytest.param(b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", id="a confirmation that nothing asked for"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="another protocol"),
    ],
)
def test_an_answer_that_makes_no_sense_ends_this_connection_only(nonsense: bytes) -> None:
    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        writer.write(nonsense)
        await listener.until("down")
        listener.heard.clear()
        await script.greet()
        await listener.until("up")

    play(scene)


def test_a_refused_subscription_ends_the_connection() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        link.subscribe([b"a"])
        writer.write(b"-NOPERM no permission\r\n")
        await listener.until("down")

    play(scene)


@pytest.mark.parametrize("answer", [b"-NOAUTH Authentication required.\r\n", b"-LOADING the data\r\n", b""])
def test_a_server_that_does_not_let_us_in_is_asked_again(answer: bytes) -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        for _ in range(3):
            _reader, writer = await script.connections.get()
            writer.write(answer)
            writer.close()
        assert ("up",) not in listener.heard
        await script.greet()
        await listener.until("up")
        assert link.up

    play(scene)


def test_a_silent_server_is_given_up_only_while_it_owes_an_answer() -> None:
    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        for _ in range(6):  # it answers what it is asked, which is no more than PING
            async with asyncio.timeout(TIMEOUT_S):
                await reader.readuntil(b"PING\r\n")
            writer.write(b"+PONG\r\n")
        assert listener.heard == [("up",)]
        await listener.until("down")

    play(scene, server_timeout_s=0.2)


def test_too_much_outstanding_is_congestion_until_half_of_it_is_answered() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        for number in range(11):
            link.send(request("x", "N", str(number)))
        await reader.readuntil(b"$2\r\n10\r\n")
        assert link.congested
        writer.write(b":0\r\n" * 5)
        await writer.drain()
        await asyncio.sleep(0.05)
        assert link.congested
        writer.write(b":0\r\n")
        await listener.until("relief")
        assert not link.congested

    play(scene, max_outstanding=10)
