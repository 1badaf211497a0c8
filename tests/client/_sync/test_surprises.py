# Generated from tests/client/_async/test_surprises.py by tools/generate_sync.py; change that file.
"""What users stumbled over: each either does what it seems to do, or says that it does not."""

import mmap
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from holdmq import ArgumentError, HoldMQ, HoldMQWarning, NoStoreError, Replay
from tests.support import Cluster, Server, reserve_port

WAIT_S = 15.0

# --- Channels of a cluster --------------------------------------------------------------------------------------------


def test_a_plain_channel_of_a_cluster_warns_that_it_keeps_nothing(
    cluster: Cluster, connect_cluster: Callable[..., HoldMQ]
) -> None:
    hold = connect_cluster(cluster)
    with pytest.warns(HoldMQWarning, match="a cluster keeps nothing of the channel 'x'"):
        assert hold.channel("x").publish("m") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hold.channel("x", sharded=False).publish("m") == 0
        assert hold.channel("x", sharded=True).publish("kept") == 0
    assert hold.channel("x", sharded=True).last() == b"kept"


def test_a_plain_channel_of_one_server_does_not_warn(hold: HoldMQ) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold.channel("x").publish("m")
    assert hold.channel("x").last() == b"m"


# --- Filters of a store -----------------------------------------------------------------------------------------------


def test_replacing_the_filters_of_a_store_warns_and_can_be_allowed_or_refused(hold: HoldMQ) -> None:
    def filters() -> tuple[str, ...]:
        return (hold.history.stores())[0].filters

    hold.history.create("s", "a/#", "b/#")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold.history.create("s", "b/#", "a/#", age="1h")  # the same ones
        hold.history.create("s", "a/#", replace_filters=True)
    assert filters() == ("a/#",)
    with pytest.raises(ArgumentError, match=r"the store 's' has the filters \('a/#',\), and \('c/#',\) would replace"):
        hold.history.create("s", "c/#", replace_filters=False)
    assert filters() == ("a/#",)
    with pytest.warns(HoldMQWarning, match="refused without replace_filters=True in a later release") as told:
        hold.history.create("s", "c/#")
    assert told[0].filename == __file__
    assert filters() == ("c/#",)


# --- Going on where a replay was --------------------------------------------------------------------------------------


def filled(hold: HoldMQ, **settings: Any) -> None:
    hold.history.create("s", "s/#", **settings)
    for number in range(10):
        hold.topics.publish(f"s/{number % 2}", str(number), qos=1)


def bookmark_of(replay: Replay) -> str:
    assert replay.bookmark is not None
    return replay.bookmark


def test_a_bookmark_has_all_that_a_later_replay_needs(hold: HoldMQ) -> None:
    filled(hold)
    began = (hold.client.time())[1]
    while abs((hold.client.time())[1] - began) < 5000:
        pass  # so that the last message is of a later millisecond
    hold.topics.publish("s/0", "last", qos=1)
    last = [message for message in hold.history.start_replay("s/0")][-1]
    replay = hold.history.start_replay("s/0", end=last.time - timedelta(milliseconds=1))
    assert replay.bookmark is None
    first = replay.get()
    assert first is not None
    assert first.payload == b"0"
    later = hold.history.resume(bookmark_of(replay))
    assert [message.payload for message in later] == [message.payload for message in replay]
    assert bookmark_of(later) == bookmark_of(replay)
    hold.topics.publish("s/0", "beyond the end", qos=1)
    assert [message for message in hold.history.resume(bookmark_of(replay))] == []


def test_a_bookmark_keeps_store_and_shard(hold: HoldMQ) -> None:
    filled(hold, shards=4)
    shard = next(one.shard for one in (hold.history.store("s").info()).shards if one.messages)
    replay = hold.history.store("s").start_replay("#", shard=shard)
    everything = [message for message in hold.history.store("s").start_replay("#", shard=shard)]
    replay.get()
    rest = [message for message in hold.history.resume(bookmark_of(replay))]
    assert rest == everything[1:]


def test_a_bookmark_can_be_followed_unless_it_has_an_end(hold: HoldMQ) -> None:
    filled(hold)
    replay = hold.history.start_replay("s/#")
    while replay.get() is not None:
        pass
    with hold.history.resume(bookmark_of(replay), follow=True) as messages:
        assert messages.get(timeout=0) is None
        hold.topics.publish("s/0", "later", qos=1)
        message = messages.get(timeout=5)
        assert message is not None
        assert message.payload == b"later"
    with_end = hold.history.start_replay("s/#", end="now")
    with_end.get()
    with pytest.raises(ArgumentError, match="expected None for a replay that follows"):
        hold.history.resume(bookmark_of(with_end), follow=True)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "3", "null", "{}", '{"filter": "a", "cursor": 3}', '{"filter": "a", "cursor": "x", "z": 1}',
     '{"filter": "a", "cursor": "x", "end": true}', '{"cursor": "x"}'],
)  # fmt: skip
def test_an_invalid_bookmark_is_refused(hold: HoldMQ, text: str) -> None:
    with pytest.raises(ArgumentError, match="expected what the bookmark of a replay was"):
        hold.history.resume(text)


# --- How long a lost connection is tried for --------------------------------------------------------------------------


def test_a_lost_connection_is_tried_for_as_long_as_was_said() -> None:
    with reserve_port() as port:
        hold = HoldMQ.from_url(f"redis://127.0.0.1:{port.number}")
        waits: list[Any] = [
            hold.subscribe("x", reconnect=1.5).get,
            hold.history.start_replay("s/#", reconnect=1.5).get,
        ]
        for wait in waits:
            began = time.monotonic()
            with pytest.raises(redis.ConnectionError):
                wait()
            assert 1.5 <= time.monotonic() - began < 10
        began = time.monotonic()
        with pytest.raises(redis.ConnectionError):
            hold.subscribe("x", reconnect=0).get()
        assert time.monotonic() - began < 1
        hold.close()


# --- Closing ----------------------------------------------------------------------------------------------------------


def test_what_is_open_is_closed_by_either_name(server: Server) -> None:
    hold = HoldMQ.from_url(server.url)
    hold.history.create("s", "s/#")
    messages, replay = hold.subscribe("x"), hold.history.follow("s/#")
    assert messages.get(timeout=0) is None
    assert replay.get(timeout=0) is None
    for thing in (messages, replay, hold):
        thing.close()
        thing.close()
    assert messages.get() is None
    assert replay.get() is None


def test_a_store_that_is_missing_has_an_error_of_its_own(hold: HoldMQ) -> None:
    store = hold.history.store("nowhere")
    calls: list[Callable[[], Any]] = [
        store.info,
        store.drop,
        lambda: store.append("a", "b"),
        lambda: store.range(0, 1, 1),
    ]
    for call in calls:
        with pytest.raises(NoStoreError, match="there is no store 'nowhere'"):
            call()


# --- Values -----------------------------------------------------------------------------------------------------------


def test_a_payload_that_no_server_takes_is_refused_before_it_is_sent(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#")
    most = 512 * 1024 * 1024
    view = memoryview(mmap.mmap(-1, most + 1))  # takes no memory until it is read
    text = "x" * (most + 1)
    calls: list[Callable[[Any], Any]] = [
        hold.channel("c").publish,
        hold.session("c").add,
        hold.session("c").producer("p").add,
        lambda payload: hold.topics.publish("s/x", payload, qos=1),
        lambda payload: hold.history.store("s").append("s/x", payload),
        lambda payload: hold.history.store("s").producer("p").append("s/x", payload),
    ]
    for call in calls:
        for payload in (view, text):
            with pytest.raises(
                ValueError, match=rf"has {most + 1} bytes; expected at most {most}.* proto-max-bulk-len"
            ):
                call(payload)
    assert hold.channel("c").publish("next") == 0
    assert hold.channel("c").last() == b"next"


def test_text_that_cannot_be_decoded_raises_once_and_ends_nothing(
    hold: HoldMQ, connect: Callable[..., HoldMQ[Any]]
) -> None:
    hold.channel("c").publish(b"\xff\xfe")
    decoded: HoldMQ[str] = connect(decode_responses=True)
    with pytest.raises(UnicodeDecodeError):
        decoded.channel("c").last()
    with decoded.subscribe("c") as messages:
        with pytest.raises(UnicodeDecodeError):
            messages.get(timeout=WAIT_S)
        for raw in (b"good", b"\xff", b"next"):
            hold.channel("c").publish(raw)
        message = messages.get(timeout=WAIT_S)
        assert message is not None
        assert message.data == "good"
        with pytest.raises(UnicodeDecodeError):
            messages.get(timeout=WAIT_S)
        message = messages.get(timeout=WAIT_S)
        assert message is not None
        assert message.data == "next"
        assert messages.reconnections == 0


def test_text_that_cannot_be_decoded_survives_as_configured(hold: HoldMQ, connect: Callable[..., HoldMQ[Any]]) -> None:
    hold.channel("c").publish(b"\xffx")
    decoded: HoldMQ[str] = connect(decode_responses=True, encoding_errors="surrogateescape")
    text = decoded.channel("c").last()
    assert text == "\udcffx"
    with decoded.subscribe("c") as messages:
        message = messages.get(timeout=WAIT_S)
        assert message is not None
        assert message.data == text
    decoded.channel("d").publish(text)
    assert hold.channel("d").last() == b"\xffx"
