"""The transcripts of the posts that the project was born from, through redis-cli, line by line.

Where the post stored the last message in a string of the channel's name, the channel's list stands here, so that its
GET is CHANNEL.LAST.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.module.channels_support import serves_each
from tests.support import Server, eventually

Open = Callable[..., "Terminal"]
READING = "Reading messages... (press Ctrl-C to quit)\n"
SUBSCRIBED = '1) "subscribe"\n2) "channel1"\n3) (integer) 1\n'
LAST = '1) "message"\n2) "channel1"\n3) "c1m2"\n'
PATTERN_SUBSCRIBED = '1) "psubscribe"\n2) "channel*"\n3) (integer) 1\n'
PATTERN_LAST = '1) "pmessage"\n2) "channel*"\n3) "channel1"\n4) "c1m2"\n'


class Terminal:
    """A redis-cli that keeps running, and what it has printed."""

    def __init__(self, server: Server, output: Path, *command: str) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                ["redis-cli", "-p", str(server.port), "--no-raw", *command],  # noqa: S607 (of the package redis-tools)
                stdout=file,
                stdin=subprocess.DEVNULL,
            )

    def shows(self, text: str) -> bool:
        """Whether it has printed exactly this up to now."""
        return self.output.read_text() == text

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def open_terminal(server: Server, tmp_path: Path) -> Iterator[Open]:
    terminals: list[Terminal] = []

    def make(*command: str) -> Terminal:
        terminals.append(Terminal(server, tmp_path / f"terminal-{len(terminals)}", *command))
        return terminals[-1]

    yield make
    for terminal in terminals:
        terminal.close()


def typed(server: Server, *lines: str) -> list[str]:
    """What redis-cli prints for lines typed into it."""
    done = subprocess.run(
        ["redis-cli", "-p", str(server.port), "--no-raw"],  # noqa: S607 (of the package redis-tools)
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.splitlines()


def test_dropped_messages_persist_in_a_list(server: Server) -> None:
    assert typed(
        server,
        "publish persistent-channel this",
        "publish persistent-channel is",
        "publish persistent-channel gonna",
        "publish persistent-channel be",
        "publish persistent-channel awesome",
        "lrange persistent-channel 0 -1",
    ) == [*["(integer) 0"] * 5, '1) "this"', '2) "is"', '3) "gonna"', '4) "be"', '5) "awesome"']


def test_the_last_published_message_can_be_read_without_subscribing(server: Server) -> None:
    assert typed(
        server,
        "publish channel1 c1m1",
        "channel.last channel1",
        "publish channel1 c1m2",
        "channel.last channel1",
    ) == ["(integer) 0", '"c1m1"', "(integer) 0", '"c1m2"']


def test_the_last_published_message_comes_with_the_subscription(
    server: Server, client: redis.Redis, open_terminal: Open
) -> None:
    typed(server, "publish channel1 c1m1", "publish channel1 c1m2")
    first = open_terminal("subscribe", "channel1")
    eventually(lambda: first.shows(READING + SUBSCRIBED + LAST), what="the transcript of SUBSCRIBE")
    if not serves_each(client):  # there only who is alone with a channel can be addressed
        first.close()
        eventually(lambda: client.pubsub_numsub("channel1") == [(b"channel1", 0)])
    second = open_terminal("psubscribe", "channel*")
    eventually(lambda: second.shows(READING + PATTERN_SUBSCRIBED + PATTERN_LAST), what="the transcript of PSUBSCRIBE")
    assert first.shows(READING + SUBSCRIBED + LAST)


def test_the_last_message_is_not_removed_by_a_subscription(
    server: Server, client: redis.Redis, open_terminal: Open
) -> None:
    typed(server, "publish channel1 c1m1", "publish channel1 c1m2")
    terminal = open_terminal("subscribe", "channel1")
    eventually(lambda: terminal.shows(READING + SUBSCRIBED + LAST))
    assert client.lrange("channel1", 0, -1) == [b"c1m1", b"c1m2"]
