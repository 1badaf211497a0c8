"""What may be shared between threads, tasks and processes: each row of the table in docs/python.md.

A fork copies an object with its position, its epoch and its sockets. The child here is a real one: it runs one
function, hands back what came of it, and ends without running anything of the test's.
"""

import asyncio
import copy
import dataclasses
import enum
import inspect
import pickle
import re
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdmq
from holdmq import AsyncHoldMQ, ConcurrentUseError, ForkedError, HoldMQ, HoldMQError, commands
from holdmq._guard import NotCopied
from tests.client.support import in_child
from tests.support import Server

TIMEOUT_S = 30
PAGE = Path(__file__).parents[2] / "docs" / "python.md"
CLASSES = sorted({one for one in vars(holdmq).values() if inspect.isclass(one)}, key=lambda one: one.__name__)
ALONE = {"Replay", "Subscription", "HistoryProducer", "Producer", "Pipeline", "Session"}
"""What may not be shared by all, but for the asyncio forms of the same."""


def in_two_threads(function: Callable[[], Any]) -> list[Any]:
    """What two simultaneous calls return or raise."""
    barrier = threading.Barrier(2)

    def run() -> Any:
        barrier.wait(TIMEOUT_S)
        try:
            return function()
        except HoldMQError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return [done.result(TIMEOUT_S) for done in [threads.submit(run), threads.submit(run)]]


def blocked(hold: HoldMQ, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The next command of the client says that it has begun, and ends when it is told to."""
    begun, go_on = threading.Event(), threading.Event()
    send = hold.client.execute_command

    def wait_and_send(*words: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(TIMEOUT_S)
        return send(*words, **options)

    monkeypatch.setattr(hold.client, "execute_command", wait_and_send)
    return begun, go_on


def fill(hold: HoldMQ, count: int) -> None:
    """A store `s` of so many messages."""
    hold.history.create("s", "s/#")
    for number in range(count):
        hold.topics.publish("s/x", str(number), qos=1)


def payloads(hold: HoldMQ) -> list[bytes]:
    return [message.payload for message in hold.history.start_replay("s/#")]


# --- What the classes say -------------------------------------------------------------------------------------------


def is_value(kind: type) -> bool:
    """Whether nothing changes its objects, so that anybody may share them."""
    if issubclass(kind, (Exception, enum.Enum)) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return True
    return dataclasses.is_dataclass(kind) and bool(vars(kind)["__dataclass_params__"].frozen)


@pytest.mark.parametrize("kind", CLASSES)
def test_each_class_says_whether_threads_tasks_and_processes_may_share_it(kind: type) -> None:
    said = " ".join((kind.__doc__ or "").split())
    if is_value(kind):
        return
    who = "task" if kind.__module__.startswith("holdmq._async") else "thread"
    assert re.search(rf"\b{who}s?\b", said, re.IGNORECASE), f"{kind.__name__} says nothing of {who}s"
    assert re.search(r"\bprocess(es)?\b", said), f"{kind.__name__} says nothing of processes"


def test_the_page_says_it_of_each_class_too() -> None:
    section = PAGE.read_text().split("## Threads, tasks and processes", 1)[1].split("\n### ", 1)[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named >= {"HoldMQ", "AsyncHoldMQ"} | ALONE
    assert {kind.__name__ for kind in CLASSES if issubclass(kind, NotCopied)} - named <= {
        "AsyncHistoryProducer",
        "AsyncProducer",
    }, "the row of a form says: and their asyncio forms"
    assert "its objects except for the rows below" in section


# --- Processes --------------------------------------------------------------------------------------------------------


def test_a_client_may_be_used_in_a_forked_process(hold: HoldMQ) -> None:
    hold.channel("x").publish("parent")
    assert in_child(lambda: (hold.channel("x").publish("child"), hold.channel("x").last())) == (0, b"child")
    assert list(hold.channel("x").backlog()) == [b"parent", b"child"]


def test_a_forked_history_producer_is_refused_and_the_parents_loses_nothing(hold: HoldMQ) -> None:
    fill(hold, 0)
    producer = hold.history.store("s").producer("p")
    assert producer.append("s/x", "first").new
    with pytest.raises(ForkedError, match=r"producer 'p' of the store 's' belongs to process \d+, and this is process"):
        in_child(lambda: producer.append("s/x", "child"))
    assert producer.append("s/x", "second").new
    assert payloads(hold) == [b"first", b"second"]


def test_a_history_producer_that_was_made_before_a_fork_is_refused_though_it_was_not_used(hold: HoldMQ) -> None:
    fill(hold, 0)
    producer = hold.history.store("s").producer("p")
    for _ in range(2):  # two children would both send number 0 of its epoch
        with pytest.raises(ForkedError):
            in_child(lambda: producer.append("s/x", "child"))
    assert in_child(lambda: hold.history.store("s").producer("of-child").append("s/x", "child").new)


def test_a_forked_session_producer_is_refused(hold: HoldMQ) -> None:
    producer = hold.session("c").producer("p")
    assert producer.add("first").packet_ids == (1,)
    with pytest.raises(ForkedError, match="producer 'p' of the session 'c'"):
        in_child(lambda: producer.add("child"))
    assert producer.add("second").packet_ids == (2,)


def test_a_replay_continues_in_one_process_alone(hold: HoldMQ) -> None:
    fill(hold, 5)
    replay = hold.history.start_replay("s/#")
    assert in_child(lambda: len(list(replay))) == 5  # not begun: nothing is shared
    first = replay.get()
    assert first is not None
    with pytest.raises(ForkedError, match="the replay of 's/#' belongs to process"):
        in_child(replay.get)
    cursor = replay.cursor
    assert in_child(lambda: len(list(hold.history.start_replay("s/#", cursor=cursor)))) == 4
    assert len(list(replay)) == 4


def test_a_followed_replay_is_the_parents_alone_also_when_a_child_closes_it(hold: HoldMQ) -> None:
    fill(hold, 1)
    with hold.history.follow("s/#") as replay:
        assert replay.get(timeout=5) is not None
        assert replay.get(timeout=0) is None
        with pytest.raises(ForkedError):
            in_child(lambda: replay.get(timeout=0))
        in_child(replay.close)
        hold.topics.publish("s/x", "later", qos=1)
        message = replay.get(timeout=5)
        assert message is not None
        assert message.payload == b"later"


def test_a_forked_subscription_takes_no_message_of_its_parent(hold: HoldMQ) -> None:
    with hold.subscribe("news") as messages:
        with pytest.raises(ForkedError, match="the subscription to 'news' belongs to process"):
            in_child(lambda: messages.get(timeout=5))
        in_child(messages.close)
        assert hold.channel("news").publish("for the parent") == 1
        message = messages.get(timeout=5)
        assert message is not None
        assert message.data == b"for the parent"
        assert messages.reconnections == 0


def test_a_subscription_that_is_not_connected_may_be_used_after_a_fork(hold: HoldMQ) -> None:
    messages = hold.subscribe("news")
    hold.channel("news").publish("kept")

    def read() -> Any:
        with messages:
            message = messages.get(timeout=5)
        return message and message.data

    assert in_child(read) == b"kept"


def test_the_epoch_of_an_opened_session_stays_in_its_process(hold: HoldMQ) -> None:
    session = hold.session("c")
    session.add("one")
    assert in_child(lambda: session.add("two").packet_ids) == (2,)  # carries no epoch
    opened = session.open("parent", expiry=60)
    for call in (session.fetch, session.touch, session.close, lambda: session.ack(1), lambda: session.subscribe("a")):
        with pytest.raises(ForkedError, match="the session 'c' belongs to process"):
            in_child(call)
    assert in_child(lambda: session.add("three").packet_ids) == (3,)
    assert len(session.fetch().entries) == 3

    def take_over() -> int:
        epoch = session.open("child", expiry=60).epoch
        session.touch()
        return epoch

    assert in_child(take_over) > opened.epoch
    same = hold.session("c", epoch=hold.session("c").info().epoch)  # who names an epoch answers for it
    assert len(in_child(same.fetch).entries) == 3


def test_a_pipeline_with_commands_stays_in_its_process(hold: HoldMQ) -> None:
    pipeline = hold.pipeline()
    last = pipeline.queue(commands.session_add("c", [b"once"]))
    for call in (pipeline.execute, lambda: pipeline.queue(commands.session_last("c"))):
        with pytest.raises(ForkedError, match="the pipeline belongs to process"):
            in_child(call)
    pipeline.execute()
    assert last.result().packet_ids == (1,)
    assert hold.session("c").last() == 1


def test_iterators_over_what_is_stored_are_copied_by_a_fork(hold: HoldMQ) -> None:
    for number in range(4):
        hold.channel("x").publish(str(number))
    messages = hold.channel("x").backlog(page=2)
    assert next(messages) == b"0"
    assert in_child(lambda: list(messages)) == [b"1", b"2", b"3"]
    assert list(messages) == [b"1", b"2", b"3"]


async def test_an_asyncio_client_that_was_used_is_refused_in_a_forked_process(server: Server) -> None:
    hold = AsyncHoldMQ.from_url(server.url)
    await hold.channel("x").publish("parent")

    async def pipelined() -> None:
        pipeline = hold.pipeline()
        pipeline.queue(commands.channel_last("x"))
        await pipeline.execute()

    async def subscribed() -> None:
        async with hold.subscribe("y"):
            pass

    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: hold.channel("x").publish("child"),
        hold.info,
        hold.supports,
        hold.history.stores,
        hold.history.start_replay("s/#", "1h").get,
        pipelined,
        subscribed,
    ]
    for call in calls:

        async def run(call: Callable[[], Awaitable[Any]] = call) -> None:
            await call()

        with pytest.raises(ForkedError, match="this client belongs to process"):
            in_child(lambda run=run: asyncio.run(run()))  # type: ignore[misc]
    assert await hold.channel("x").last() == b"parent"
    await hold.aclose()


def test_an_asyncio_client_that_was_not_used_may_be_used_in_a_forked_process(server: Server) -> None:
    hold = AsyncHoldMQ.from_url(server.url)

    async def use() -> Any:
        async with hold:
            await hold.channel("x").publish("child")
            return await hold.channel("x").last()

    assert in_child(lambda: asyncio.run(use())) == b"child"
    assert in_child(lambda: asyncio.run(use())) == b"child"


async def test_what_has_a_position_in_asyncio_stays_in_its_process_and_continues_there(server: Server) -> None:
    async with AsyncHoldMQ.from_url(server.url) as hold:
        await hold.history.create("s", "s/#")
        for number in range(3):
            await hold.topics.publish("s/x", str(number), qos=1)
        store, session = hold.history.store("s"), hold.session("c")
        await session.open("parent", expiry=60)
        producer, replay, pipeline = store.producer("p"), hold.history.start_replay("s/#"), hold.pipeline()
        adding, followed = session.producer("q"), hold.history.follow("s/#")
        queued = pipeline.queue(commands.session_last("c"))
        assert (await producer.append("s/y", "first")).new
        assert (await adding.add("first")).packet_ids == (1,)
        assert await replay.get() is not None
        assert await followed.get(timeout=5) is not None
        async with hold.subscribe("news") as messages:
            calls: dict[str, Callable[[], Any]] = {
                "the producer 'p'": lambda: producer.append("s/y", "child"),
                "the producer 'q'": lambda: adding.add("child"),
                "the replay of 's/#'": replay.get,
                "the replay of": followed.get,
                "the pipeline": pipeline.execute,
                "the subscription to 'news'": messages.get,
                "the session 'c'": session.fetch,
            }
            for what, call in calls.items():

                async def run(call: Callable[[], Any] = call) -> None:
                    await call()

                with pytest.raises(ForkedError, match=f"^{what}.* belongs to process"):
                    in_child(lambda run=run: asyncio.run(run()))  # type: ignore[misc]
            in_child(lambda: [asyncio.run(one.aclose()) for one in (messages, followed, replay)] and None)
            assert await hold.channel("news").publish("for the parent") == 1
            message = await messages.get(timeout=5)
        assert message is not None
        assert message.data == b"for the parent"
        assert (await producer.append("s/y", "second")).new
        assert (await adding.add("second")).packet_ids == (2,)
        assert len([one async for one in replay]) == 4
        await pipeline.execute()
        assert queued.result() == 2
        assert len((await session.fetch()).entries) == 2
        assert await followed.get(timeout=5) is not None
        await followed.aclose()


# --- Threads ----------------------------------------------------------------------------------------------------------


def test_threads_may_share_a_client_and_its_handles(hold: HoldMQ) -> None:
    fill(hold, 0)
    store, session, channel = hold.history.store("s"), hold.session("c"), hold.channel("x")

    def work(number: int) -> None:
        channel.publish(str(number))
        hold.topics.publish("s/x", str(number), qos=1)
        store.append("s/y", str(number))
        session.add(str(number))

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(200)]:
            done.result(TIMEOUT_S)
    numbers = [str(number).encode() for number in range(200)]
    assert sorted(channel.backlog()) == sorted(numbers)
    assert sorted(payloads(hold)) == sorted(numbers * 2)
    assert sorted(entry.value for entry in session.entries()) == sorted(numbers)


def test_a_replay_gives_each_message_to_one_thread(hold: HoldMQ) -> None:
    fill(hold, 200)
    replay = hold.history.start_replay("s/#", page=7)
    taken: list[bytes] = []

    def take() -> int:
        refused = 0
        while True:
            try:
                message = replay.get()
            except ConcurrentUseError:
                refused += 1
                continue
            if message is None:
                return refused
            taken.append(message.payload)

    in_two_threads(take)
    assert sorted(taken, key=int) == [str(number).encode() for number in range(200)]


@pytest.mark.parametrize("method", ["next", "get", "__next__"])
def test_a_second_thread_in_a_replay_is_refused(hold: HoldMQ, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    fill(hold, 3)
    replay = hold.history.start_replay("s/#")
    begun, go_on = blocked(hold, monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: len(list(replay)))
        assert begun.wait(TIMEOUT_S)
        with pytest.raises(ConcurrentUseError, match="another thread is using the replay of 's/#'"):
            getattr(replay, method)()
        go_on.set()
        assert reading.result(TIMEOUT_S) == 3


def test_a_second_thread_in_a_subscription_is_refused(hold: HoldMQ) -> None:
    with hold.subscribe("news") as messages, ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: messages.get(timeout=TIMEOUT_S))
        refused = None
        while refused is None:
            try:
                assert messages.get(timeout=0) is None  # the other thread has not begun
            except ConcurrentUseError as error:
                refused = error
        assert str(refused).startswith("another thread is using the subscription to 'news'")
        hold.channel("news").publish("m")
        message = reading.result(TIMEOUT_S)
        assert message is not None
        assert message.data == b"m"


def test_a_subscription_may_be_closed_by_another_thread(hold: HoldMQ) -> None:
    messages = hold.subscribe("news")
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: messages.get(timeout=TIMEOUT_S))
        time.sleep(0.05)
        messages.close()
        assert reading.result(TIMEOUT_S) is None


@pytest.mark.parametrize("kind", ["history", "session"])
def test_a_second_thread_in_a_producer_is_refused_and_nothing_is_lost(
    hold: HoldMQ, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fill(hold, 0)
    history, session = hold.history.store("s").producer("p"), hold.session("c").producer("p")
    send: Callable[[str], Any] = (lambda text: history.append("s/x", text)) if kind == "history" else session.add
    begun, go_on = blocked(hold, monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send, "first")
        assert begun.wait(TIMEOUT_S)
        for call in (lambda: send("second"), (history if kind == "history" else session).retry):
            with pytest.raises(ConcurrentUseError, match="another thread is using the producer 'p'"):
                call()
        go_on.set()
        sending.result(TIMEOUT_S)
    send("third")
    stored = payloads(hold) if kind == "history" else [entry.value for entry in hold.session("c").entries()]
    assert stored == [b"first", b"third"]


def test_a_second_thread_in_a_pipeline_is_refused(hold: HoldMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = hold.pipeline()
    reply = pipeline.queue(commands.session_add("c", [b"m"]))
    begun, go_on = threading.Event(), threading.Event()
    made = hold.client.pipeline

    def wait_and_make(**options: Any) -> Any:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return made(**options)

    monkeypatch.setattr(hold.client, "pipeline", wait_and_make)
    with ThreadPoolExecutor(1) as threads:
        executing = threads.submit(pipeline.execute)
        assert begun.wait(TIMEOUT_S)
        for call in (pipeline.execute, lambda: pipeline.queue(commands.session_last("c"))):
            with pytest.raises(ConcurrentUseError, match="another thread is using the pipeline"):
                call()
        go_on.set()
        assert [one.result() for one in executing.result(TIMEOUT_S)] == [reply.result()]


# --- Tasks ------------------------------------------------------------------------------------------------------------


async def test_tasks_may_share_a_client_and_its_handles(server: Server) -> None:
    async with AsyncHoldMQ.from_url(server.url) as hold:
        session = hold.session("c")
        await asyncio.gather(*(session.add(str(number)) for number in range(50)))
        assert await session.last() == 50


async def test_a_second_task_is_refused(server: Server) -> None:
    async with AsyncHoldMQ.from_url(server.url) as hold:
        await hold.history.create("s", "s/#")
        producer, other = hold.history.store("s").producer("p"), hold.session("c").producer("p")
        replay, pipeline = hold.history.start_replay("s/#"), hold.pipeline()
        pipeline.queue(commands.session_last("c"))
        async with hold.subscribe("news") as messages:
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: producer.append("s/x", "m"),
                lambda: other.add("m"),
                replay.get,
                replay.next,
                lambda: messages.get(timeout=0.1),
                pipeline.execute,
            ]
            for call in calls:
                results: Any = await asyncio.gather(call(), call(), return_exceptions=True)
                first, second = results
                assert not isinstance(first, BaseException)
                assert isinstance(second, ConcurrentUseError)
                assert str(second).startswith("another task is using the ")
        assert [message.payload async for message in hold.history.start_replay("s/#")] == [b"m"]


# --- Copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_what_has_a_position_cannot_be_copied(server: Server, make: Callable[[Any], Any]) -> None:
    with HoldMQ.from_url(server.url) as hold:
        hold.history.create("s", "s/#")
        with hold.subscribe("news") as messages:
            for one in (
                hold.history.store("s").producer("p"),
                hold.session("c").producer("p"),
                hold.history.start_replay("s/#"),
                hold.pipeline(),
                messages,
            ):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    make(one)


@pytest.mark.parametrize("make", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_a_client_and_what_it_hands_out_say_what_to_do_instead_of_being_pickled(
    server: Server, make: Callable[[Any], Any]
) -> None:
    with HoldMQ.from_url(server.url) as hold:
        store = hold.history.store("s")
        things = [hold, hold.channel("c"), hold.session("c"), hold.topics, hold.history, hold.dry_run, store]
        for thing in [*things, AsyncHoldMQ.from_url(server.url)]:
            with pytest.raises(TypeError, match=r"HoldMQ cannot be pickled .*: make one in each process"):
                make(thing)
        assert copy.copy(hold).client is hold.client
