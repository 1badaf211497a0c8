"""Topics: publishing and retained messages."""

import pytest

from holdmq import ArgumentError, AsyncHoldMQ, FencedError, InvalidTopicError, Publisher, commands
from tests.client.support import message_of


async def test_a_message_without_a_subscriber_reaches_nobody(hold: AsyncHoldMQ) -> None:
    assert await hold.topics.publish("weather/oslo", b"snow", qos=1) == 0


async def test_a_retained_message_is_found_by_filter_and_by_topic(hold: AsyncHoldMQ) -> None:
    await hold.topics.publish("weather/oslo", b"snow", qos=1, retain=True, publisher="station", properties=b"\x01\x01")
    await hold.topics.publish("weather/rome", b"sun", retain=True)
    await hold.topics.publish("news", b"none", retain=True)
    assert sorted(await hold.topics.retained("weather/+")) == ["weather/oslo", "weather/rome"]
    assert len(await hold.topics.retained("#", count=2)) == 2
    message = await hold.topics.retained_message("weather/oslo")
    assert message is not None
    assert (message.topic, message.payload, message.qos, message.retain) == ("weather/oslo", b"snow", 1, True)
    assert (message.publisher, message.properties) == ("station", b"\x01\x01")
    assert message.time_ms > 1_700_000_000_000
    assert await hold.topics.retained_message("weather/bergen") is None


async def test_retained_topics_are_listed_however_many_pages_it_takes(hold: AsyncHoldMQ) -> None:
    topics = [f"{number % 100}/{number}" for number in range(7000)]
    for begin in range(0, len(topics), 500):
        part = topics[begin : begin + 500]
        await hold.execute_all([commands.topic_publish(topic, b"x" * 100, retain=True) for topic in part])
    assert await hold.topics.retained("#", count=10_000) == tuple(sorted(topics))
    assert await hold.topics.retained("+/6999") == ("99/6999",)
    assert len(await hold.topics.retained("#")) == 1000
    assert len(await hold.topics.retained("#", count=6999)) == 6999
    messages = await hold.topics.retained_messages("#", count=10_000)
    assert [message.topic for message in messages] == sorted(topics)
    assert {message.payload for message in messages} == {b"x" * 100}


async def test_an_empty_payload_removes_the_retained_message(hold: AsyncHoldMQ) -> None:
    await hold.topics.publish("weather", b"snow", retain=True)
    await hold.topics.publish("weather", b"", retain=True)
    assert await hold.topics.retained("#") == ()


async def test_a_time_to_live_is_kept_with_the_message(hold: AsyncHoldMQ) -> None:
    await hold.topics.publish("weather", b"snow", retain=True, ttl=100)
    message = await hold.topics.retained_message("weather")
    assert message is not None
    assert message.expires_ms is not None
    assert 0 <= message.expires_ms - message.time_ms - 100_000 < 1000


async def test_a_publisher_does_not_hear_itself_with_no_local(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("owner", expiry=100)
    await session.subscribe("a", no_local=True)
    assert await hold.topics.publish("a", b"own", qos=1, publisher="device") == 0
    assert await hold.topics.publish("a", b"other", qos=1, publisher="other") == 1


async def test_publishes_go_as_one_command_and_each_has_its_reply(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    opened = await session.open("owner", expiry=100)
    await session.subscribe("a", qos=1)
    fenced = Publisher("device", epoch=opened.epoch + 1)
    publishes = [
        commands.topic_publish("a", b"1", qos=1),
        commands.topic_publish("b", b"2", qos=1),
        commands.topic_publish("a", b"3", qos=1, publisher=fenced),
        commands.topic_publish("a", b"4", qos=1, publisher=Publisher("device", epoch=opened.epoch)),
    ]
    first, second, third, fourth = await hold.execute(commands.topic_pipeline(publishes))
    assert (first, second, fourth) == (1, 0, 1)
    assert isinstance(third, FencedError)
    page = await session.fetch()
    assert [message_of(entry).payload for entry in page.entries] == [b"1", b"4"]


async def test_topics_that_mqtt_forbids_are_refused_before_anything_is_sent(hold: AsyncHoldMQ) -> None:
    for wrong in ("", "a/+", "#", "a\0b", "x" * 65536):
        with pytest.raises(InvalidTopicError):
            await hold.topics.publish(wrong, b"x")
    with pytest.raises(InvalidTopicError):
        await hold.topics.retained("a/#/b")


async def test_numbers_outside_of_their_range_are_refused_before_anything_is_sent(hold: AsyncHoldMQ) -> None:
    with pytest.raises(ArgumentError, match="qos is 3; expected a whole number from 0 to 2"):
        await hold.topics.publish("a", b"x", qos=3)
    with pytest.raises(ArgumentError, match="ttl is -1"):
        await hold.topics.publish("a", b"x", ttl=-1)
    with pytest.raises(ArgumentError, match="payload is 5; expected bytes or str"):
        await hold.topics.publish("a", 5)  # type: ignore[arg-type]


async def test_a_message_of_qos_2_that_is_sent_again_is_published_once(hold: AsyncHoldMQ) -> None:
    await hold.session("reader").subscribe("a", qos=2)
    device = hold.session("device")
    opened = await device.open("bridge", expiry=60)

    async def publish(payload: bytes) -> int:
        return await hold.topics.publish("a", payload, qos=2, publisher=Publisher("device", opened.epoch, 7))

    assert await publish(b"first") == 1
    assert await publish(b"first") == -1
    assert await device.complete(7) == 1
    assert await publish(b"second") == 1
    page = await hold.session("reader").fetch()
    assert [message_of(entry).payload for entry in page.entries] == [b"first", b"second"]


async def test_a_publisher_that_was_taken_over_is_refused(hold: AsyncHoldMQ) -> None:
    first = await hold.session("device").open("bridge-1", expiry=60)
    await hold.session("device").open("bridge-2", expiry=60)
    with pytest.raises(FencedError):
        await hold.topics.publish("a", b"x", publisher=Publisher("device", first.epoch))
