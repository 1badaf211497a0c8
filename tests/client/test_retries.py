"""Each row of the table "Sending again" of docs/python.md: the server has carried a command out, and its reply is lost.

Once with a client of `from_url`, which raises, and once with one of redis-py with its own retries, which sends again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from holdmq import HoldMQ, HoldMQError, Message, ProducerChunk
from tests.client.proxy import Proxy
from tests.client.python_page import PAGE
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds

CHUNK = ProducerChunk("p", 1, 1)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the server that can lose replies."""
    made = Proxy(server)
    yield made
    made.close()


@pytest.fixture
def hold(server: Server) -> Iterator[HoldMQ]:
    """A client that loses no reply: what it sees is what the server has; with a store and a subscribed session."""
    with HoldMQ.from_url(server.url) as made:
        made.history.create("s", "s/#")
        made.session("c").subscribe("t/#")
        yield made


@pytest.fixture
def raising(proxy: Proxy) -> Iterator[HoldMQ]:
    """A client of `from_url`, with an open connection."""
    with HoldMQ.from_url(proxy.url) as made:
        yield made


@pytest.fixture
def repeating(proxy: Proxy) -> Iterator[HoldMQ]:
    """A client with redis-py's own retries, with an open connection."""
    with redis.Redis(port=proxy.port) as client:
        made = HoldMQ(client)
        made.require_module()
        yield made


@dataclass
class Write:
    """Something that stores a message.

    Attributes:
        make: makes the call; the same call again is a repetition.
        stored: how many messages there are.
    """

    make: Callable[[HoldMQ], Callable[[], Any]]
    stored: Callable[[HoldMQ], int]


def in_channel(hold: HoldMQ) -> int:
    return len(list(hold.channel("x").backlog()))


def in_session(hold: HoldMQ) -> int:
    return hold.session("c").info().messages


def in_store(hold: HoldMQ) -> int:
    return hold.history.store("s").info().messages


def appending(hold: HoldMQ) -> Callable[[], Any]:
    producer = hold.history.store("s").producer("p")
    return lambda: producer.retry() if producer.pending else producer.append("s/x", "m")


def adding(hold: HoldMQ) -> Callable[[], Any]:
    producer = hold.session("c").producer("p")
    return lambda: producer.retry() if producer.pending else producer.add("m")


PLAIN = {
    "Channel.publish": Write(lambda hold: lambda: hold.channel("x").publish("m"), in_channel),
    "Topics.publish": Write(lambda hold: lambda: hold.topics.publish("t/x", "m", qos=1), in_session),
    "HistoryStore.append": Write(lambda hold: lambda: hold.history.store("s").append("s/x", "m"), in_store),
    "Session.add": Write(lambda hold: lambda: hold.session("c").add("m"), in_session),
}
NUMBERED = {
    "Channel.publish": Write(lambda hold: lambda: hold.channel("x").publish("m", producer=CHUNK), in_channel),
    "Topics.publish": Write(lambda hold: lambda: hold.topics.publish("t/x", "m", qos=1, producer=CHUNK), in_session),
    "HistoryStore.append": Write(
        lambda hold: lambda: hold.history.store("s").append("s/x", "m", producer=CHUNK), in_store
    ),
    "HistoryStore.import_records": Write(
        lambda hold: (
            lambda: hold.history.store("s").import_records(0, [Message(topic="s/x", payload=b"m")], producer=CHUNK)
        ),
        in_store,
    ),
    "HistoryProducer.append": Write(appending, in_store),
    "Producer.add": Write(adding, in_session),
}


@pytest.mark.parametrize("write", PLAIN.values(), ids=PLAIN)
def test_a_plain_write_raises_or_is_stored_twice(
    hold: HoldMQ, proxy: Proxy, raising: HoldMQ, repeating: HoldMQ, write: Write
) -> None:
    call = write.make(raising)
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        call()
    assert write.stored(hold) == 1, "the server had carried it out"
    call()
    assert write.stored(hold) == 2, "sent again by the caller"
    call = write.make(repeating)
    proxy.swallow_next_reply()
    call()
    assert write.stored(hold) == 4, "sent again by redis-py"
    assert proxy.swallowed == 2


@pytest.mark.parametrize("write", NUMBERED.values(), ids=NUMBERED)
def test_a_numbered_write_raises_and_is_stored_once(hold: HoldMQ, proxy: Proxy, raising: HoldMQ, write: Write) -> None:
    call = write.make(raising)
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        call()
    assert write.stored(hold) == 1
    call()
    assert write.stored(hold) == 1


@pytest.mark.parametrize("write", NUMBERED.values(), ids=NUMBERED)
def test_a_numbered_write_that_redis_py_repeats_is_stored_once(
    hold: HoldMQ, proxy: Proxy, repeating: HoldMQ, write: Write
) -> None:
    call = write.make(repeating)
    proxy.swallow_next_reply()
    call()
    assert proxy.swallowed == 1
    assert write.stored(hold) == 1


@pytest.mark.parametrize("refusal", [b"READONLY a replica by now", b"OOM no memory", b"NOREPLICAS too few"])
@pytest.mark.parametrize("kind", ["HistoryProducer", "Producer"])
def test_what_redis_py_repeats_and_is_refused_then_is_stored_once_by_retry(
    hold: HoldMQ, proxy: Proxy, repeating: HoldMQ, kind: str, refusal: bytes
) -> None:
    history, session = repeating.history.store("s").producer("p"), repeating.session("c").producer("p")
    is_history = kind == "HistoryProducer"
    send = (lambda text: history.append("s/x", text)) if is_history else session.add
    stored = in_store if is_history else in_session
    send("first")
    proxy.swallow_next_reply()
    proxy.refuse_next_command(refusal)
    with pytest.raises(redis.ResponseError):
        send("second")
    assert proxy.swallowed == 1
    assert stored(hold) == 2, "the server had carried it out"
    retry = history.retry if is_history else session.retry
    retry()
    assert stored(hold) == 2
    send("third")
    assert stored(hold) == 3
    with pytest.raises(HoldMQError, match="is known"):
        retry()


SAME_AGAIN: dict[str, Callable[[HoldMQ], Any]] = {
    "Session.ack": lambda hold: hold.session("c").ack(1),
    "Session.release": lambda hold: hold.session("c").release(2),
    "HistoryStore.trim": lambda hold: hold.history.store("s").trim(0, 2),
    "HistoryStore.hold": lambda hold: hold.history.store("s").hold("r", {0: 3}),
    "History.create": lambda hold: hold.history.create("s", "s/#", age="1h", replace_filters=True),
}


def everything(hold: HoldMQ) -> Any:
    """What the server has, but for the clock."""
    shards = hold.history.store("s").info().shards
    places = [(one.first, one.last, one.trimmed, one.holds) for one in shards]
    return [*hold.session("c").entries()], places, hold.history.stores()


@pytest.mark.parametrize("call", SAME_AGAIN.values(), ids=SAME_AGAIN)
def test_what_is_done_again_has_the_same_effect_as_once(
    hold: HoldMQ, proxy: Proxy, raising: HoldMQ, repeating: HoldMQ, call: Callable[[HoldMQ], Any]
) -> None:
    hold.session("c").add("1", "2", "3")
    for number in range(4):
        hold.history.store("s").append("s/x", str(number))
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        call(raising)
    call(raising)
    once = everything(hold)
    proxy.swallow_next_reply()
    call(repeating)
    assert everything(hold) == once


def test_what_was_handed_out_comes_again_as_in_flight(hold: HoldMQ, proxy: Proxy, raising: HoldMQ) -> None:
    hold.session("c").add(*map(str, range(6)))
    session = raising.session("c")
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        session.fetch(window=2)
    assert [entry.value for entry in session.fetch(inflight=True).entries] == [b"0", b"1"]
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        session.ack_next(1, count=1)
    assert [entry.value for entry in session.fetch(inflight=True).entries] == [b"1", b"2"]


def test_what_redis_py_repeats_may_hand_out_more(hold: HoldMQ, proxy: Proxy, repeating: HoldMQ) -> None:
    hold.session("c").add(*map(str, range(6)))
    session = repeating.session("c")
    session.fetch(window=2)
    proxy.swallow_next_reply()
    session.ack_next(1, count=1)
    assert proxy.swallowed == 1
    assert [entry.value for entry in session.fetch(inflight=True).entries] == [b"1", b"2", b"3"]


def test_the_table_of_the_page_has_the_rows_that_are_tested() -> None:
    section = PAGE.read_text().split("## Retries", 1)[1].split("\n### ", 1)[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert rows == [
        "what",
        "---",
        "`publish`, `append`, `add`",
        "the same with `producer=`, `producer(…)`",
        "replays, `follow`, subscriptions",
        "`ack`, `release`, `trim`, `hold`, `create`",
        "`fetch(window=…)`, `ack_next`",
    ]
