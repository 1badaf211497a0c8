"""What users stumbled over: each either does what it seems to do, or says that it does not."""

import mmap
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from holdmq import ArgumentError, AsyncHoldMQ, AsyncReplay, HoldMQWarning, NoStoreError
from tests.support import Cluster, Server, reserve_port

WAIT_S = 15.0

# --- Channels of a cluster --------------------------------------------------------------------------------------------


async def test_a_plain_channel_of_a_cluster_warns_that_it_keeps_nothing(
    cluster: Cluster, connect_cluster: Callable[..., AsyncHoldMQ]
) -> None:
    hold = connect_cluster(cluster)
    with pytest.warns(HoldMQWarning, match="a cluster keeps nothing of the channel 'x'"):
        assert await hold.channel("x").publish("m") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await hold.channel("x", sharded=False).publish("m") == 0
        assert await hold.channel("x", sharded=True).publish("kept") == 0
    assert await hold.channel("x", sharded=True).last() == b"kept"


async def test_a_plain_channel_of_one_server_does_not_warn(hold: AsyncHoldMQ) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await hold.channel("x").publish("m")
    assert await hold.channel("x").last() == b"m"


# --- Filters of a store -----------------------------------------------------------------------------------------------


async def test_replacing_the_filters_of_a_store_warns_and_can_be_allowed_or_refused(hold: AsyncHoldMQ) -> None:
    async def filters() -> tuple[str, ...]:
        return (await hold.history.stores())[0].filters

    await hold.history.create("s", "a/#", "b/#")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await hold.history.create("s", "b/#", "a/#", age="1h")  # the same ones
        await hold.history.create("s", "a/#", replace_filters=True)
    assert await filters() == ("a/#",)
    with pytest.raises(ArgumentError, match=r"the store 's' has the filters \('a/#',\), and \('c/#',\) would replace"):
        await hold.history.create("s", "c/#", replace_filters=False)
    assert await filters() == ("a/#",)
    with pytest.warns(HoldMQWarning, match="refused without replace_filters=True in a later release") as told:
        await hold.history.create("s", "c/#")
    assert told[0].filename == __file__
    assert await filters() == ("c/#",)


# --- Going on where a replay was --------------------------------------------------------------------------------------


async def filled(hold: AsyncHoldMQ, **settings: Any) -> None:
    await hold.history.create("s", "s/#", **settings)
    for number in range(10):
        await hold.topics.publish(f"s/{number % 2}", str(number), qos=1)


def bookmark_of(replay: AsyncReplay) -> str:
    assert replay.bookmark is not None
    return replay.bookmark


async def test_a_bookmark_has_all_that_a_later_replay_needs(hold: AsyncHoldMQ) -> None:
    await filled(hold)
    began = (await hold.client.time())[1]
    while abs((await hold.client.time())[1] - began) < 5000:
        pass  # so that the last message is of a later millisecond
    await hold.topics.publish("s/0", "last", qos=1)
    last = [message async for message in hold.history.start_replay("s/0")][-1]
    replay = hold.history.start_replay("s/0", end=last.time - timedelta(milliseconds=1))
    assert replay.bookmark is None
    first = await replay.get()
    assert first is not None
    assert first.payload == b"0"
    later = hold.history.resume(bookmark_of(replay))
    assert [message.payload async for message in later] == [message.payload async for message in replay]
    assert bookmark_of(later) == bookmark_of(replay)
    await hold.topics.publish("s/0", "beyond the end", qos=1)
    assert [message async for message in hold.history.resume(bookmark_of(replay))] == []


async def test_a_bookmark_keeps_store_and_shard(hold: AsyncHoldMQ) -> None:
    await filled(hold, shards=4)
    shard = next(one.shard for one in (await hold.history.store("s").info()).shards if one.messages)
    replay = hold.history.store("s").start_replay("#", shard=shard)
    everything = [message async for message in hold.history.store("s").start_replay("#", shard=shard)]
    await replay.get()
    rest = [message async for message in hold.history.resume(bookmark_of(replay))]
    assert rest == everything[1:]


async def test_a_bookmark_can_be_followed_unless_it_has_an_end(hold: AsyncHoldMQ) -> None:
    await filled(hold)
    replay = hold.history.start_replay("s/#")
    while await replay.get() is not None:
        pass
    async with hold.history.resume(bookmark_of(replay), follow=True) as messages:
        assert await messages.get(timeout=0) is None
        await hold.topics.publish("s/0", "later", qos=1)
        message = await messages.get(timeout=5)
        assert message is not None
        assert message.payload == b"later"
    with_end = hold.history.start_replay("s/#", end="now")
    await with_end.get()
    with pytest.raises(ArgumentError, match="expected None for a replay that follows"):
        hold.history.resume(bookmark_of(with_end), follow=True)


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "3", "null", "{}", '{"filter": "a", "cursor": 3}', '{"filter": "a", "cursor": "x", "z": 1}',
     '{"filter": "a", "cursor": "x", "end": true}', '{"cursor": "x"}'],
)  # fmt: skip
async def test_an_invalid_bookmark_is_refused(hold: AsyncHoldMQ, text: str) -> None:
    with pytest.raises(ArgumentError, match="expected what the bookmark of a replay was"):
        hold.history.resume(text)


# --- How long a lost connection is tried for --------------------------------------------------------------------------


async def test_a_lost_connection_is_tried_for_as_long_as_was_said() -> None:
    with reserve_port() as port:
        hold = AsyncHoldMQ.from_url(f"redis://127.0.0.1:{port.number}")
        waits: list[Any] = [
            hold.subscribe("x", reconnect=1.5).get,
            hold.history.start_replay("s/#", reconnect=1.5).get,
        ]
        for wait in waits:
            began = time.monotonic()
            with pytest.raises(redis.ConnectionError):
                await wait()
            assert 1.5 <= time.monotonic() - began < 10
        began = time.monotonic()
        with pytest.raises(redis.ConnectionError):
            await hold.subscribe("x", reconnect=0).get()
        assert time.monotonic() - began < 1
        await hold.aclose()


# --- Closing ----------------------------------------------------------------------------------------------------------


async def test_what_is_open_is_closed_by_either_name(server: Server) -> None:
    hold = AsyncHoldMQ.from_url(server.url)
    await hold.history.create("s", "s/#")
    messages, replay = hold.subscribe("x"), hold.history.follow("s/#")
    assert await messages.get(timeout=0) is None
    assert await replay.get(timeout=0) is None
    for thing in (messages, replay, hold):
        await thing.close()
        await thing.aclose()
    assert await messages.get() is None
    assert await replay.get() is None


async def test_a_store_that_is_missing_has_an_error_of_its_own(hold: AsyncHoldMQ) -> None:
    store = hold.history.store("nowhere")
    calls: list[Callable[[], Any]] = [
        store.info,
        store.drop,
        lambda: store.append("a", "b"),
        lambda: store.range(0, 1, 1),
    ]
    for call in calls:
        with pytest.raises(NoStoreError, match="there is no store 'nowhere'"):
            await call()


# --- Values -----------------------------------------------------------------------------------------------------------


async def test_a_payload_that_no_server_takes_is_refused_before_it_is_sent(hold: AsyncHoldMQ) -> None:
    await hold.history.create("s", "s/#")
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
                await call(payload)
    assert await hold.channel("c").publish("next") == 0
    assert await hold.channel("c").last() == b"next"


async def test_text_that_cannot_be_decoded_raises_once_and_ends_nothing(
    hold: AsyncHoldMQ, connect: Callable[..., AsyncHoldMQ[Any]]
) -> None:
    await hold.channel("c").publish(b"\xff\xfe")
    decoded: AsyncHoldMQ[str] = connect(decode_responses=True)
    with pytest.raises(UnicodeDecodeError):
        await decoded.channel("c").last()
    async with decoded.subscribe("c") as messages:
        with pytest.raises(UnicodeDecodeError):
            await messages.get(timeout=WAIT_S)
        for raw in (b"good", b"\xff", b"next"):
            await hold.channel("c").publish(raw)
        message = await messages.get(timeout=WAIT_S)
        assert message is not None
        assert message.data == "good"
        with pytest.raises(UnicodeDecodeError):
            await messages.get(timeout=WAIT_S)
        message = await messages.get(timeout=WAIT_S)
        assert message is not None
        assert message.data == "next"
        assert messages.reconnections == 0


async def test_text_that_cannot_be_decoded_survives_as_configured(
    hold: AsyncHoldMQ, connect: Callable[..., AsyncHoldMQ[Any]]
) -> None:
    await hold.channel("c").publish(b"\xffx")
    decoded: AsyncHoldMQ[str] = connect(decode_responses=True, encoding_errors="surrogateescape")
    text = await decoded.channel("c").last()
    assert text == "\udcffx"
    async with decoded.subscribe("c") as messages:
        message = await messages.get(timeout=WAIT_S)
        assert message is not None
        assert message.data == text
    await decoded.channel("d").publish(text)
    assert await hold.channel("d").last() == b"\xffx"
