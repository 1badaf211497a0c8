"""The link to the server, against a scripted server: the greeting, losses, silence, answers that make no sense."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.kind import ClusterFoundError
from holdmq_bridge.server.link import Link

HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"
CLUSTER_HELLO = b"%2\r\n$5\r\nproto\r\n:3\r\n$4\r\nmode\r\n$7\r\ncluster\r\n"
PRIMARY = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
REPLICA = b"*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:6379\r\n$9\r\nconnected\r\n:0\r\n"
FOUND = b":0\r\n"  # the reply to the probe
GREETING = HELLO + PRIMARY + FOUND
PING = b"*1\r\n$4\r\nPING\r\n"
TIMEOUT_S = 10.0


class Listener:
    """Notes what the link tells."""

    def __init__(self, buffer_bytes: int = 64) -> None:
        self.server_buffer = memoryview(bytearray(buffer_bytes))
        self.heard: list[Any] = []
        self.link: Link | None = None
        self.makes_sense = True
        self._changed = asyncio.Event()

    def _note(self, what: Any) -> None:
        self.heard.append(what)
        self._changed.set()

    def on_bytes(self, count: int) -> bool:
        self._note(bytes(self.server_buffer[:count]))
        return self.makes_sense

    def on_up(self) -> None:
        self._note("up")

    def on_down(self) -> None:
        self._note("down")

    def on_writable(self) -> None:
        self._note("writable")

    def on_failed(self) -> None:
        """The scripts count attempts by their connections."""

    def on_primary_moved(self) -> None:
        self._note("moved")

    def ping(self) -> bool:
        assert self.link is not None
        self.link.write(PING)
        return True

    async def until(self, what: Any) -> None:
        """Waits until this was told."""
        async with asyncio.timeout(TIMEOUT_S):
            while what not in self.heard:
                self._changed.clear()
                await self._changed.wait()

    async def until_bytes(self, data: bytes) -> None:
        """Waits until these bytes came, in whatever pieces."""
        async with asyncio.timeout(TIMEOUT_S):
            while b"".join(part for part in self.heard if isinstance(part, bytes)) != data:
                self._changed.clear()
                await self._changed.wait()


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

    async def greet(self, greeting: bytes = GREETING) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Takes the next connection and answers its greeting, a byte at a time."""
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await self.connections.get()
            await reader.readuntil(b"{holdmq-bridge-probe}\r\n")
        for at in range(len(greeting)):
            writer.write(greeting[at : at + 1])
            await asyncio.sleep(0)
        return reader, writer


def play(
    scene: Callable[[Link, Listener, Script], Awaitable[None]],
    runs: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    *,
    buffer_bytes: int = 64,
    **settings: Any,
) -> None:
    """Runs a scene with a link that connects to a script."""

    async def run() -> None:
        script = Script()
        await script.start()
        listener = Listener(buffer_bytes)
        options = {"retry_first_s": 0.01, "retry_max_s": 0.05, **settings}
        link = Link(Settings(redis=f"redis://127.0.0.1:{script.port}", **options), listener, "test")
        listener.link = link
        task = asyncio.create_task(link.run())
        try:
            await scene(link, listener, script)
        finally:
            task.cancel()
            await asyncio.wait([task])
            link.close()
            await script.stop()

    runs(run())


def test_bytes_go_both_ways_in_their_order_once_the_server_has_let_us_in() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        for number in range(100):
            link.write(b"%d," % number)
        expected = b"".join(b"%d," % number for number in range(100))
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.readexactly(len(expected)) == expected
        writer.write(expected)  # more than the buffer holds
        await listener.until_bytes(expected)

    play(scene)


def test_a_turn_of_the_loop_takes_a_bounded_share_of_what_the_server_sends() -> None:
    """So clients are read between the parts of large replies.  uvloop itself would read 32 buffers first."""
    most, whole = 1 << 20, 64 << 20
    turns = [0]

    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        listener.heard.clear()
        writer.write(b"x" * whole)
        came_whole = asyncio.Event()
        loop = asyncio.get_running_loop()

        def turn() -> None:
            came = sum(len(part) for part in listener.heard if isinstance(part, bytes))
            if came:
                turns.append(came)
                listener.heard.clear()
            if sum(turns) < whole:
                loop.call_soon(turn)
            else:
                came_whole.set()

        turn()
        async with asyncio.timeout(TIMEOUT_S * 3):
            await came_whole.wait()
        assert max(turns) <= most

    play(scene, uvloop.run, buffer_bytes=262_144)


def test_after_a_loss_the_link_comes_back() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        writer.close()
        await listener.until("down")
        assert not link.up
        listener.heard.clear()
        await script.greet()
        await listener.until("up")
        assert (link.up, link.connections, link.losses) == (True, 2, 1)

    play(scene)


async def lose_some(listener: Listener, script: Script, count: int) -> list[float]:
    """The server closes so many connections as soon as they are up; the pauses between them."""
    pauses, closed_at = [], 0.0
    for number in range(count):
        _reader, writer = await script.greet()
        if number:
            pauses.append(time.monotonic() - closed_at)
        await listener.until("up")
        listener.heard.clear()
        writer.close()
        closed_at = time.monotonic()
        await listener.until("down")
    await script.greet()
    await listener.until("up")
    return pauses


def test_a_server_that_closes_the_connection_soon_is_asked_less_and_less_often() -> None:
    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        pauses = await lose_some(listener, script, 5)
        assert all(pause >= step / 2 for pause, step in zip(pauses, (0.08, 0.16, 0.32, 0.32), strict=True))

    play(scene, retry_first_s=0.08, retry_max_s=0.32)


def test_after_a_connection_that_lasted_the_next_one_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq_bridge.server.link.STABLE_S", 0.0)

    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        assert max(await lose_some(listener, script, 3)) < TIMEOUT_S

    play(scene, retry_first_s=3 * TIMEOUT_S, retry_max_s=3 * TIMEOUT_S)


def test_an_answer_that_makes_no_sense_ends_this_connection_only() -> None:
    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        listener.makes_sense = False
        writer.write(b"nonsense")
        await listener.until("down")
        listener.heard.clear()
        await script.greet()
        await listener.until("up")

    play(scene)


@pytest.mark.parametrize(
    "answer",
    [
        b"-NOAUTH Authentication required.\r\n",
        b"-LOADING the data\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"",
        HELLO + REPLICA + FOUND,
    ],
)
def test_a_server_that_does_not_let_us_in_is_asked_again(answer: bytes) -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        for _ in range(3):
            _reader, writer = await script.connections.get()
            writer.write(answer)
            writer.close()
        assert "up" not in listener.heard
        await script.greet()
        await listener.until("up")
        assert link.up

    play(scene)


def test_a_node_of_a_cluster_ends_the_link() -> None:
    """So that a bridge for clusters takes its place."""

    async def run() -> None:
        script = Script()
        await script.start()
        link = Link(Settings(redis=f"redis://127.0.0.1:{script.port}"), Listener(), "test")
        task = asyncio.create_task(link.run())
        try:
            await script.greet(CLUSTER_HELLO + PRIMARY + FOUND)
            async with asyncio.timeout(TIMEOUT_S):
                with pytest.raises(ClusterFoundError):
                    await task
        finally:
            task.cancel()
            await script.stop()

    asyncio.run(run())


def test_a_user_who_may_not_ask_for_the_role_is_served() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        await script.greet(HELLO + b"-NOPERM this user has no permissions to run the 'role' command\r\n" + FOUND)
        await listener.until("up")
        assert link.up

    play(scene)


def test_nothing_is_read_or_written_while_a_failover_is_in_doubt() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        link.primary_in_doubt(doubt=True)
        assert link.paused
        writer.write(b"+OK\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
        assert listener.heard == ["up"]
        link.primary_in_doubt(doubt=False)
        await listener.until("writable")
        await listener.until_bytes(b"+OK\r\n")

    play(scene)


def test_the_old_primary_is_left_at_once_with_all_that_it_replied_in_doubt() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        _reader, writer = await script.greet()
        await listener.until("up")
        link.primary_in_doubt(doubt=True)
        writer.write(b"+OK\r\n")
        await writer.drain()
        link.primary_moved(("127.0.0.1", script.port))
        await listener.until("down")
        await script.greet()
        await asyncio.sleep(0)
        assert not [part for part in listener.heard if isinstance(part, bytes)]
        assert not link.paused

    play(scene)


def test_a_link_does_not_come_up_while_a_failover_is_in_doubt() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        link.primary_in_doubt(doubt=True)
        for _ in range(3):
            reader, _writer = await script.greet()
            async with asyncio.timeout(TIMEOUT_S):
                assert await reader.read() == b""
        assert listener.heard == []
        link.primary_in_doubt(doubt=False)
        await script.greet()
        await listener.until("up")
        assert not link.paused

    play(scene)


@pytest.mark.parametrize("news", ["announced", "moved"])
def test_a_failover_during_the_greeting_keeps_the_link_from_the_old_primary(news: str) -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet(HELLO + PRIMARY)  # it still is
        if news == "moved":
            link.primary_moved(("127.0.0.1", script.port + 1))
        else:
            link.primary_in_doubt(doubt=True)
        writer.write(FOUND)
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == b""
        link.primary_in_doubt(doubt=False)
        await script.greet()
        await listener.until("up")
        assert listener.heard.count("up") == 1

    play(scene)


def test_a_silent_server_is_given_up_only_when_it_answers_no_question() -> None:
    async def scene(_link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        for _ in range(4):
            async with asyncio.timeout(TIMEOUT_S):
                await reader.readuntil(PING)
            writer.write(b"+PONG\r\n")
        assert "down" not in listener.heard
        await listener.until("down")

    play(scene, server_timeout_s=0.6)


def test_a_process_that_was_itself_kept_from_running_does_not_take_its_own_silence_for_the_servers() -> None:
    async def scene(link: Link, listener: Listener, script: Script) -> None:
        reader, writer = await script.greet()
        await listener.until("up")
        for _ in range(3):
            time.sleep(0.6)  # noqa: ASYNC251  # stops the whole loop; in the later turns with an answer on its way
            async with asyncio.timeout(TIMEOUT_S):
                await reader.readuntil(PING)
            writer.write(b"+PONG\r\n")
        await listener.until(b"+PONG\r\n")
        assert (link.connections, "down" in listener.heard) == (1, False)

    play(scene, server_timeout_s=0.4)
