"""A KeyboardInterrupt at any instruction of a call leaves an object that continues: nothing silent, nothing stuck.

One message may go with the interrupt: the one that was being handed out when it came.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

import holdmq
from holdmq import HoldMQ, commands
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds

PACKAGE = str(Path(holdmq.__file__).parent)


class Interruption:
    """Raises KeyboardInterrupt before one instruction of the package, by its number from the beginning of a call."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self._instruction


def interrupted(number: int, call: Callable[[], Any]) -> tuple[str, Any]:
    """Where the call was interrupted, empty if it has fewer instructions, and what it returned if it did."""
    interruption = Interruption(number)
    before = sys.gettrace()
    sys.settrace(interruption)
    try:
        result = call()
    except KeyboardInterrupt:
        result = None
    finally:
        sys.settrace(before)
    return interruption.where, result


@pytest.fixture
def hold(server: Server) -> Iterator[HoldMQ]:
    """A client, with a store."""
    with HoldMQ.from_url(server.url) as made:
        made.history.create("s", "s/#")
        yield made


def test_an_interrupted_producer_of_history_loses_and_repeats_nothing(hold: HoldMQ) -> None:
    wrong = []
    store = hold.history.store("s")
    for number in itertools.count(1):
        producer = store.producer(f"p{number % 9}")
        assert producer.append("s/x", f"{number} before").new
        where, _ = interrupted(number, lambda: producer.append("s/x", f"{number} interrupted"))  # noqa: B023
        try:
            if producer.pending:
                producer.retry()
            if not producer.append("s/x", f"{number} after").new:
                wrong.append(f"{where}: the next message was taken for a repetition")
        except holdmq.HoldMQError as error:
            wrong.append(f"{where}: {error}")
        if not where:
            break
    assert wrong == []
    payloads = [message.payload for message in store.start_replay("s/x")]
    assert len(payloads) == len(set(payloads))
    assert number > 100


def test_an_interrupted_producer_of_a_session_loses_and_repeats_nothing(hold: HoldMQ) -> None:
    wrong = []
    for number in itertools.count(1):
        session = hold.session(f"c{number}")
        producer = session.producer("p")
        where, _ = interrupted(number, lambda: producer.add("interrupted"))  # noqa: B023
        try:
            if producer.pending:
                producer.retry()
            producer.add("after")
        except holdmq.HoldMQError as error:
            wrong.append(f"{where}: {error}")
        found = [entry.value for entry in session.entries()]
        if found not in ([b"interrupted", b"after"], [b"after"]):
            wrong.append(f"{where}: {found}")
        if not where:
            break
    assert wrong == []
    assert number > 100


@pytest.mark.parametrize("method", ["queue", "execute"])
def test_an_interrupted_pipeline_gives_each_command_its_own_reply(hold: HoldMQ, method: str) -> None:
    wrong = []
    for client_id in ("first", "middle", "last"):
        hold.session(client_id).add(*["x"] * len(client_id))
    for number in itertools.count(1):
        pipeline = hold.pipeline()
        first = pipeline.queue(commands.session_last("first"))
        call = pipeline.execute if method == "execute" else lambda: pipeline.queue(commands.session_last("middle"))  # noqa: B023
        where, _ = interrupted(number, call)
        try:
            last = pipeline.queue(commands.session_last("last"))
            pipeline.execute()
            if last.result() != len("last") or (first.done and first.result() != len("first")):
                wrong.append(f"{where}: {first.result()}, {last.result()}")
        except (holdmq.HoldMQError, ValueError) as error:
            wrong.append(f"{where}: {error}")
        if not where:
            break
    assert wrong == []
    assert number > 100


@pytest.mark.timeout(400)  # sixteen seconds of a processor, which a busy machine shares among many
def test_an_interrupted_replay_continues_after_the_message_that_was_handed_out(hold: HoldMQ) -> None:
    wrong = []
    store = hold.history.store("s")
    for number in range(20):
        store.append("s/x", str(number))
    for skipped in (2, 3, 4):  # in a page, at its end, behind it
        for number in itertools.count(1):
            replay = store.start_replay("s/x", page=4)
            seen = [int(next(replay).payload) for _ in range(skipped)]
            where, message = interrupted(number, replay.get)
            seen += [int(message.payload)] if message else []
            try:
                seen += [int(message.payload) for message in replay]
            except (holdmq.HoldMQError, IndexError) as error:
                wrong.append(f"{where}: {error}")
            else:
                one_less = [*range(skipped), *range(skipped + 1, 20)]
                if seen not in (list(range(20)), one_less):
                    wrong.append(f"{where}: {seen}")
            if not where:
                break
    assert wrong == []


def test_an_interrupted_subscription_continues(server: Server, hold: HoldMQ) -> None:
    wrong = []
    lost = []
    with redis.Redis.from_url(server.url) as publisher:
        for number in itertools.count(1):
            with hold.subscribe("x") as messages:
                publisher.publish("x", f"{number} a")
                publisher.publish("x", f"{number} b")
                where, message = interrupted(number, lambda: messages.get(5))
                seen = [message.data.decode()] if message else []
                try:
                    while seen[-1:] != [f"{number} b"] and (message := messages.get(5)):
                        seen.append(message.data.decode())
                except holdmq.HoldMQError as error:
                    wrong.append(f"{where}: {error}")
                    continue
                lost += [where] if seen == [f"{number} b"] else []
                if [one for one in seen if one != f"{number} a"] != [f"{number} b"] or len(seen) > 2:
                    wrong.append(f"{where}: {seen}")
            if not where:
                break
    assert wrong == []
    assert not [where for where in lost if where.startswith("_feed")], "read, and not handed out"
    assert number > 100


def test_a_call_that_is_at_work_is_not_taken_for_an_interrupted_one(hold: HoldMQ) -> None:
    with hold.subscribe("x") as messages:
        with messages._guard, pytest.raises(holdmq.ConcurrentUseError):
            messages.get(0)
        assert messages.get(0) is None
