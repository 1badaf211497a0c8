"""Live views under load: a flood of messages keeps no page waiting, and takes a bounded memory."""

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import redis

from holdmq import HoldMQ
from tests.console.support import API, HOST, Api, ConsoleProcess, add_user
from tests.support import Server, embedded_kinds, eventually

server_kinds = embedded_kinds
NewConsole = Callable[..., ConsoleProcess]

ASKED = 15
MOST_WAIT_S = 1.0  # on a machine with other work; a starved console took 3 s
VIEW = b"GET /live/events?filter=%23 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextmanager
def flooded(server: Server, payload: bytes, at_once: int) -> Iterator[None]:
    """Publishes as fast as the server takes it."""
    stop = threading.Event()

    def publish() -> None:
        with server.client() as client:
            while not stop.is_set():
                pipe = client.pipeline(transaction=False)
                for number in range(at_once):
                    pipe.execute_command("TOPIC.PUBLISH", f"plant/{number % 7}", payload)
                pipe.execute(raise_on_error=False)  # QUEUEFULL: there are too many for now

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def watched(console: ConsoleProcess) -> Iterator[list[dict[str, Any]]]:
    """A browser that watches; the list has what it was told of the rate."""
    rates: list[dict[str, Any]] = []
    stop = threading.Event()

    def watch() -> None:
        with (
            suppress(httpx.HTTPError),
            httpx.stream("GET", f"{console.url}/live/events?filter=%23", timeout=30) as answer,
        ):
            name = ""
            for line in answer.iter_lines():
                if stop.is_set():
                    return
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif name == "rate" and line:
                    rates.append(json.loads(line.removeprefix("data: ")))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield rates
    finally:
        stop.set()
        thread.join()


def resident_mib(pid: int) -> float:
    """The memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def test_a_flood_of_messages_keeps_no_page_waiting(server: Server, new_console: NewConsole) -> None:
    console = new_console()
    times = []
    with watched(console) as rates, flooded(server, b"x" * 20, 100):
        eventually(lambda: [one for one in rates if not one["complete"]], 60, "a flooded view")
        for _ in range(ASKED):
            begin = time.monotonic()
            assert httpx.get(f"{console.url}{API}/overview/curves", timeout=30).status_code == 200
            times.append(time.monotonic() - begin)
    assert statistics.median(times) < MOST_WAIT_S, times
    assert max(one["shown"] for one in rates) <= 20


def test_after_a_flood_a_view_shows_every_message_again(server: Server, new_console: NewConsole, hold: HoldMQ) -> None:
    console = new_console()
    with watched(console) as rates:
        with flooded(server, b"x" * 20, 100):
            eventually(lambda: [one for one in rates if not one["complete"]], 60, "a flooded view")
        eventually(lambda: rates[-1] == {"messages": 0, "shown": 0, "complete": True}, 60, "the end of the flood")
        hold.topics.publish("plant/1", b"x")
        eventually(lambda: {"messages": 1, "shown": 1, "complete": True} in rates, 30, "a message that is shown")


def test_a_flooded_view_whose_browser_reads_nothing_takes_a_bounded_memory(
    server: Server, client: redis.Redis, new_console: NewConsole
) -> None:
    console = new_console(request_timeout_s=60)
    idle = resident_mib(console.pid)
    longest_backlog = 0
    with socket.create_connection(("127.0.0.1", console.port)) as browser:
        browser.sendall(VIEW)
        assert browser.recv(12) == b"HTTP/1.1 200"
        with flooded(server, b"x" * 1_000_000, 4):
            begin = time.monotonic()
            while time.monotonic() - begin < 10:
                longest_backlog = max([longest_backlog, *(int(one["omem"]) for one in client.client_list())])
        assert resident_mib(console.pid) - idle < 64
    assert longest_backlog < 64_000_000  # the server's limit for pub/sub clients, and what is published in a step


def opened_at_once(console: ConsoleProcess, cookie: str = "") -> int:
    """How many of 20 views that are asked for at the same moment are open."""
    request = VIEW.replace(b"\r\n\r\n", f"\r\nCookie: holdmq_console={cookie}\r\n\r\n".encode())
    with ExitStack() as stack:
        browsers = [stack.enter_context(socket.create_connection((HOST, console.port))) for _ in range(20)]
        for one in browsers:
            one.settimeout(30)
            one.sendall(request)
        statuses = [one.recv(12) for one in browsers]
    assert set(statuses) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}, statuses
    return statuses.count(b"HTTP/1.1 200")


def test_views_that_are_opened_at_the_same_moment_are_bounded(new_console: NewConsole, hold: HoldMQ) -> None:
    assert opened_at_once(new_console(live_views=4)) == 4
    eventually(lambda: not list(hold.sessions()), 30, "the end of their sessions")


def test_a_user_has_half_of_the_views_at_most(new_console: NewConsole, client: redis.Redis, hold: HoldMQ) -> None:
    console = new_console(live_views=4)
    for name in ("alice", "bob"):
        add_user(client, name, "viewer")
    alice, bob = Api(console), Api(console)
    with alice.http, bob.http:
        alice.log_in("alice")
        bob.log_in("bob")
        assert opened_at_once(console, alice.http.cookies["holdmq_console"]) == 2
        eventually(lambda: not list(hold.sessions()), 30, "the end of their sessions")
        with alice.http.stream("GET", "/live/events") as one, alice.http.stream("GET", "/live/events") as another:
            assert (one.status_code, another.status_code) == (200, 200)
            assert opened_at_once(console, bob.http.cookies["holdmq_console"]) == 2


def test_a_view_whose_browser_leaves_at_once_is_forgotten(new_console: NewConsole, hold: HoldMQ) -> None:
    console = new_console(live_views=2)
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", console.port)) as browser:
            browser.sendall(VIEW)

    def opens() -> bool:
        with httpx.stream("GET", f"{console.url}/live/events?filter=%23", timeout=30) as answer:
            return answer.status_code == 200

    eventually(opens, 30, "a view beside those that have ended")
    eventually(lambda: not list(hold.sessions()), 30, "the end of their sessions")
