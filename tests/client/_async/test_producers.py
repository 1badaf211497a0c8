"""Producers: a batch that is sent again is not stored again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdmq import ArgumentError, AsyncHoldMQ, HoldMQError, ProducerError, WrongTypeError, commands
from tests.client.proxy import Proxy
from tests.support import Server


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    """The time in which the server refuses what needs memory."""
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


async def test_batches_are_stored_in_order(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    producer = session.producer("station")
    assert (await producer.add(b"a", b"b")).packet_ids == (1, 2)
    assert (await producer.add_expiring((b"c", 60))).packet_ids == (3,)
    assert [entry.value async for entry in session.entries()] == [b"a", b"b", b"c"]


async def test_a_batch_sent_again_is_answered_as_it_was(hold: AsyncHoldMQ) -> None:
    batch = commands.session_add("device", [b"a", b"b"], producer=("station", 5))
    first = await hold.execute(batch)
    assert await hold.execute(batch) == first
    assert first.packet_ids == (1, 2)
    assert (await hold.session("device").info()).messages == 2


async def test_a_batch_that_the_library_repeats_after_a_lost_reply_is_stored_once(
    server: Server, proxy: Proxy, connect: Callable[..., AsyncHoldMQ]
) -> None:
    hold = connect(proxy, retry=Retry(NoBackoff(), 3))
    producer = hold.session("device").producer("station")
    await producer.add(b"first")
    proxy.swallow_next_reply()
    assert (await producer.add(b"second")).packet_ids == (2,)
    assert proxy.swallowed == 1
    values = [entry.value async for entry in connect(server).session("device").entries()]
    assert values == [b"first", b"second"]


async def test_a_batch_of_unknown_outcome_is_sent_again_by_retry(
    proxy: Proxy, connect: Callable[..., AsyncHoldMQ]
) -> None:
    hold = connect(proxy)
    session = hold.session("device")
    producer = session.producer("station")
    await producer.add(b"first")
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        await producer.add(b"second")
    with pytest.raises(HoldMQError, match=r"expected a retry\(\)"):
        await producer.add(b"third")
    assert (await producer.retry()).packet_ids == (2,)
    with pytest.raises(HoldMQError, match="the outcome of every batch is known"):
        await producer.retry()
    assert (await producer.add(b"third")).packet_ids == (3,)
    assert [entry.value async for entry in session.entries()] == [b"first", b"second", b"third"]


async def test_a_plain_add_that_is_repeated_is_stored_twice(proxy: Proxy, connect: Callable[..., AsyncHoldMQ]) -> None:
    session = connect(proxy, retry=Retry(NoBackoff(), 3)).session("device")
    await session.add(b"first")
    proxy.swallow_next_reply()
    await session.add(b"second")
    assert [entry.value async for entry in session.entries()] == [b"first", b"second", b"second"]


async def test_a_restarted_producer_continues(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.producer("station").add(b"before")
    assert (await session.producer("station").add(b"after")).packet_ids == (2,)


async def test_two_producers_of_one_name_are_found_out(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    slow, fast = session.producer("station", sequence=1), session.producer("station", sequence=100)
    await fast.add(b"fast")
    with pytest.raises(ProducerError, match="has used number 1 before"):
        await slow.add(b"slow")
    assert (await session.info()).messages == 1


async def test_a_refused_batch_is_not_pending(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    producer = hold.session("device").producer("station")
    client.set("{device}_messages", "a string")
    with pytest.raises(WrongTypeError):
        await producer.add(b"a")
    client.delete("{device}_messages")
    assert not producer.pending
    assert (await producer.add(b"a")).packet_ids == (1,)


async def test_arguments_that_cannot_be_are_refused(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    with pytest.raises(ArgumentError, match="sequence is 0"):
        session.producer("station", sequence=0)
    with pytest.raises(ArgumentError, match="1001 payloads were given; expected 1 to 1000"):
        await session.producer("station").add(*[b"x"] * 1001)


async def test_a_refused_retry_leaves_the_batch_pending(
    proxy: Proxy, connect: Callable[..., AsyncHoldMQ], client: redis.Redis
) -> None:
    session = connect(proxy).session("device")
    producer = session.producer("station")
    await producer.add(b"first")
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        await producer.add(b"second")
    with full(client), pytest.raises(redis.ResponseError):
        await producer.retry()
    assert producer.pending
    assert (await producer.retry()).packet_ids == (2,)
    assert (await producer.add(b"third")).packet_ids == (3,)
    assert [entry.value async for entry in session.entries()] == [b"first", b"second", b"third"]


async def test_a_refused_retry_leaves_the_message_pending(
    proxy: Proxy, connect: Callable[..., AsyncHoldMQ], client: redis.Redis
) -> None:
    hold = connect(proxy)
    await hold.history.create("s", "s/#")
    producer = hold.history.store("s").producer("p")
    proxy.swallow_next_reply()
    with pytest.raises(redis.ConnectionError):
        await producer.append("s/1", b"first")
    with full(client), pytest.raises(redis.ResponseError):
        await producer.retry()
    assert producer.pending
    assert not (await producer.retry()).new
    assert (await producer.append("s/1", b"second")).new
    assert [kept.payload async for kept in hold.history.start_replay("s/#")] == [b"first", b"second"]


async def test_what_follows_a_refusal_has_a_number_of_its_own(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    """The library may have sent what was refused before, by itself, and lost the reply."""
    await hold.history.create("s", "s/#")
    history, producer = hold.history.store("s").producer("p"), hold.session("device").producer("station")
    numbers = (history.chunk, producer.sequence)
    with full(client):
        with pytest.raises(redis.ResponseError):
            await history.append("s/1", b"a")
        with pytest.raises(redis.ResponseError):
            await producer.add(b"a")
    assert not history.pending
    assert not producer.pending
    assert (history.chunk, producer.sequence) == (numbers[0] + 1, numbers[1] + 1)
