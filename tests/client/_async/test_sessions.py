"""Sessions: the queue, its pages and acknowledgements, owners and subscriptions."""

import pytest
import redis

from holdmq import (
    AddResult,
    ArgumentError,
    AsyncHoldMQ,
    CommandError,
    Entry,
    EntryState,
    FencedError,
    IdentityError,
    InvalidTopicError,
    Message,
    NoSessionError,
    SubscriptionOptions,
    Will,
    WrongTypeError,
)
from tests.client.support import message_of
from tests.support import eventually


async def test_messages_come_back_in_the_order_in_which_they_were_added(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    assert await session.add(b"one") == AddResult((1,), 1, 0, 0)
    assert await session.add("two", bytearray(b"three")) == AddResult((2, 3), 3, 0, 0)
    page = await session.fetch()
    assert page.entries == (
        Entry(1, 1, EntryState.QUEUED, b"one"),
        Entry(2, 2, EntryState.QUEUED, b"two"),
        Entry(3, 3, EntryState.QUEUED, b"three"),
    )
    assert (page.more, page.expired) == (False, 0)
    assert await session.last() == 3


async def test_a_queue_is_read_in_pages_from_a_serial_on(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    payloads = [f"{number}".encode() for number in range(25)]
    await session.add(*payloads)
    page = await session.fetch(after=5, count=10)
    assert [entry.serial for entry in page.entries] == list(range(6, 16))
    assert page.more
    sizes = [len(page.entries) async for page in session.pages(count=10)]
    assert sizes == [10, 10, 5]
    assert [entry.value async for entry in session.entries(count=4)] == payloads


async def test_a_page_is_bounded_by_bytes_and_has_one_message_at_least(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.add(b"x" * 1000, b"y" * 1000, b"z" * 1000)
    assert [len(page.entries) async for page in session.pages(max_bytes=1)] == [1, 1, 1]


async def test_acknowledged_messages_are_gone(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.add(b"a", b"b", b"c")
    assert await session.ack(1, 3, 9) == 2
    assert [entry.packet_id async for entry in session.entries()] == [2]


async def test_the_oldest_beyond_the_limit_are_trimmed(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    assert (await session.add(b"a", b"b", b"c", limit=2)).trimmed == 1
    assert [entry.value async for entry in session.entries()] == [b"b", b"c"]


async def test_messages_live_as_long_as_requested(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    await session.add_expiring((b"short", 5), (b"long", None), (b"longer", 500), ttl=50)
    await session.add(b"default ttl", ttl=40)
    lives = [client.ttl(f"{{device}}_messages_{packet_id}") for packet_id in (1, 2, 3, 4)]
    for life, expected in zip(lives, (5, 50, 500, 40), strict=True):
        assert expected - 3 <= life <= expected


async def test_expired_messages_are_dropped_and_counted(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    await session.add(b"a", b"b")
    client.pexpire("{device}_messages_1", 1)
    eventually(lambda: not client.exists("{device}_messages_1"))
    page = await session.fetch()
    assert ([entry.value for entry in page.entries], page.expired) == ([b"b"], 1)


async def test_payloads_that_read_like_options_are_payloads(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.add("LIMIT", "5", "EXPIRING", "MESSAGES")
    await session.add("TTL")
    values = [entry.value async for entry in session.entries()]
    assert values == [b"LIMIT", b"5", b"EXPIRING", b"MESSAGES", b"TTL"]


@pytest.mark.parametrize("client_id", ["{}", "a}b{c", "100%", b"\xff\xfe{", "sensor/1"])
async def test_no_client_id_defeats_the_hash_tag(hold: AsyncHoldMQ, client: redis.Redis, client_id: str) -> None:
    await hold.session(client_id).add(b"x")
    assert [entry.value async for entry in hold.session(client_id).entries()] == [b"x"]
    keys = list(client.scan_iter())
    tags = {key[key.index(b"{") : key.index(b"}") + 1] for key in keys}
    assert len(tags) == 1
    assert all(key.count(b"{") == key.count(b"}") == 1 for key in keys)


async def test_a_prefix_precedes_the_key(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    await hold.session("device", prefix="tbmq:").add(b"x")
    assert client.exists("tbmq:{device}_messages") == 1
    assert (await hold.session("device").info()).messages == 0


async def test_a_session_is_opened_kept_and_closed(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    opened = await session.open("first", expiry=100)
    assert opened.epoch > 0
    assert (opened.present, session.epoch) == (False, opened.epoch)
    await session.touch()
    info = await session.info()
    assert (info.exists, info.owner, info.epoch) == (True, "first", opened.epoch)
    assert (info.connected, info.expiry) == (True, 100)
    await session.close()
    info = await session.info()
    assert (info.exists, info.connected) == (True, False)
    assert info.ttl_ms is not None
    assert 0 < info.ttl_ms <= 100_000
    second = await hold.session("device").open("second", expiry=100)
    assert second.present
    assert second.epoch > opened.epoch


async def test_a_session_that_nobody_opened_has_an_info_too(hold: AsyncHoldMQ) -> None:
    info = await hold.session("nobody").info()
    assert (info.exists, info.owner, info.epoch, info.connected, info.messages) == (False, "", 0, False, 0)
    assert (info.subscriptions, info.ttl_ms) == (0, None)


async def test_a_session_of_another_identity_is_refused(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("first", expiry=100, identity="user:alice")
    await session.add(b"x")
    with pytest.raises(IdentityError, match="belongs to 'user:alice'"):
        await hold.session("device").open("second", identity="user:bob")
    assert (await session.info()).identity == "user:alice"
    assert [row.identity async for row in hold.sessions()] == ["user:alice"]
    assert (await session.open("program", expiry=100)).present  # who does not say is not asked
    assert ((await session.info()).identity, (await session.info()).messages) == ("user:alice", 1)


async def test_a_former_owner_is_refused_every_write(hold: AsyncHoldMQ) -> None:
    former, present = hold.session("device"), hold.session("device")
    await former.open("former", expiry=100)
    await former.add(b"x")
    await present.open("present", expiry=100)
    with pytest.raises(FencedError):
        await former.touch()
    with pytest.raises(FencedError):
        await former.ack(1)
    with pytest.raises(FencedError):
        await former.subscribe("a")
    with pytest.raises(FencedError):
        await former.fetch()
    with pytest.raises(FencedError):
        await former.drop()
    with pytest.raises(FencedError):
        await former.close()
    assert await present.ack(1) == 1


async def test_a_clean_start_drops_what_was_there(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("first", expiry=100)
    await session.add(b"x")
    opened = await session.open("second", clean=True, expiry=100)
    assert not opened.present
    assert (await session.info()).messages == 0


async def test_a_session_closed_with_expiry_0_is_gone(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    await session.open("owner", expiry=100)
    await session.add(b"x")
    await session.close(expiry=0)
    assert not (await session.info()).exists
    assert client.keys("{device}*") == []


async def test_a_session_that_was_never_opened_cannot_be_touched_or_closed(hold: AsyncHoldMQ) -> None:
    session = hold.session("device", epoch=1)
    for refused in (session.touch, session.close):
        with pytest.raises((NoSessionError, FencedError)):
            await refused()


async def test_drop_reports_how_many_messages_there_were(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.add(b"a", b"b")
    assert await session.drop() == 2
    assert await session.drop() == 0


async def test_subscriptions_keep_their_options(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("owner", expiry=100)
    options = SubscriptionOptions(2, no_local=True, retain_as_published=True, retain_handling=2)
    assert await session.subscribe("a/+", "b/#") == (True, True)
    assert await session.subscribe_each({"a/+": options, "EPOCH": SubscriptionOptions(0)}) == (False, True)
    assert await session.subscriptions() == {
        "a/+": options,
        "b/#": SubscriptionOptions(1),
        "EPOCH": SubscriptionOptions(0),
    }
    assert await session.unsubscribe("a/+", "c") == (True, False)
    assert set(await session.subscriptions()) == {"b/#", "EPOCH"}


async def test_all_subscriptions_are_listed_however_many_there_are(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    filters = {f"d/{number}" for number in range(12_000)}
    for start in range(0, 12_000, 1_000):
        await session.subscribe(*(f"d/{number}" for number in range(start, start + 1_000)))
    assert set(await session.subscriptions()) == filters


async def test_a_published_message_waits_in_the_session_that_subscribed(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("owner", expiry=100)
    await session.subscribe("weather/+", qos=1)
    assert await hold.topics.publish("weather/oslo", b"\x00snow", qos=2, publisher="station") == 1
    (entry,) = [entry async for entry in session.entries()]
    message = entry.message
    assert isinstance(message, Message)
    assert (message.topic, message.payload, message.qos) == ("weather/oslo", b"\x00snow", 1)
    assert (message.retain, message.publisher) == (False, "station")


async def test_an_entry_that_is_not_a_record_says_so(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.add(b'{"packetId": 1}')
    (entry,) = [entry async for entry in session.entries()]
    with pytest.raises(ArgumentError, match="record"):
        _ = entry.message


async def test_a_message_is_added_as_a_record(hold: AsyncHoldMQ) -> None:
    message = Message(
        topic="a/b", payload=b"x", qos=1, time_ms=1_700_000_000_000, publisher="me", properties=b"\x01\x01"
    )
    session = hold.session("device")
    await session.add(message.to_record())
    assert [entry.message async for entry in session.entries()] == [message]


async def test_filters_that_mqtt_forbids_are_refused_before_anything_is_sent(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    for wrong in ("", "a/#/b", "a+", "a\0b", "$share/g"):
        with pytest.raises(InvalidTopicError):
            await session.subscribe(wrong)
        with pytest.raises(InvalidTopicError):
            await session.unsubscribe("fine", wrong)


async def test_numbers_outside_of_their_range_are_refused_before_anything_is_sent(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    with pytest.raises(ArgumentError, match="limit is 0; expected a whole number from 1 to 65535"):
        await session.add(b"x", limit=0)
    with pytest.raises(ArgumentError, match="ttl is 2147483648"):
        await session.add(b"x", ttl=2**31)
    with pytest.raises(ArgumentError, match="ttl of a message is 0"):
        await session.add_expiring((b"x", 0))
    with pytest.raises(ArgumentError, match="packet_id is 65536"):
        await session.ack(1, 65536)
    with pytest.raises(ArgumentError, match="0 packet_ids were given"):
        await session.ack()
    with pytest.raises(ArgumentError, match="count is 10001"):
        await session.fetch(count=10_001)
    with pytest.raises(ArgumentError, match="expiry is -1"):
        await session.close(expiry=-1)
    with pytest.raises(ArgumentError, match="client_id is empty"):
        hold.session("")
    with pytest.raises(ArgumentError, match="epoch is -1"):
        hold.session("device", epoch=-1)
    assert (await session.info()).messages == 0


async def test_a_key_of_another_type_is_refused(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    client.set("{device}_messages", "a string")
    with pytest.raises(WrongTypeError) as caught:
        await hold.session("device").add(b"x")
    assert isinstance(caught.value, redis.ResponseError)
    assert isinstance(caught.value, CommandError)


async def test_a_window_hands_out_no_more_than_may_be_unacknowledged(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.add(*[f"{number}".encode() for number in range(10)])
    page = await session.fetch(window=4)
    assert ([entry.value for entry in page.entries], page.more) == ([b"0", b"1", b"2", b"3"], True)
    assert (await session.fetch(window=4)).entries == ()
    inflight = await session.fetch(inflight=True)
    assert [(entry.packet_id, entry.state) for entry in inflight.entries] == [
        (number, EntryState.INFLIGHT) for number in (1, 2, 3, 4)
    ]
    acked = await session.ack_next(1, 2, count=2)
    assert acked.removed == 2
    assert [entry.value for entry in acked.page.entries] == [b"4", b"5"]
    assert [entry.value for entry in (await session.fetch(window=10, count=1)).entries] == [b"6"]


async def test_what_was_sent_by_other_ways_is_in_flight(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("owner", expiry=60)
    await session.add(b"a", b"b", b"c")
    await session.sent(2)
    assert [entry.value for entry in (await session.fetch(inflight=True)).entries] == [b"a", b"b"]
    assert [entry.value for entry in (await session.fetch(window=10)).entries] == [b"c"]
    await session.close(sent=3)


async def test_a_released_message_keeps_its_identifier_and_its_time_to_live(
    hold: AsyncHoldMQ, client: redis.Redis
) -> None:
    session = hold.session("device")
    await session.add(Message(topic="a", payload=b"x" * 1000, qos=2).to_record(), ttl=100)
    await session.fetch(window=1)
    assert await session.release(1, 2) == 1
    (entry,) = [entry async for entry in session.entries()]
    assert (entry.packet_id, entry.state) == (1, EntryState.RELEASED)
    assert len(entry.value) < 100
    assert entry.message is None
    with pytest.raises(ArgumentError, match="without a message"):
        Message.from_record(entry.value)
    assert 90 < client.ttl("{device}_messages_1") <= 100
    assert await session.ack(1) == 1


async def test_a_released_entry_has_no_message(hold: AsyncHoldMQ) -> None:
    session = hold.session("c")
    await session.subscribe("a", qos=2)
    for text in ("one", "two"):
        await hold.topics.publish("a", text, qos=2)
    await session.release(1)
    entries = (await session.fetch()).entries
    assert [entry.message and entry.message.payload for entry in entries] == [None, b"two"]


async def test_a_handle_without_an_epoch_fills_a_session_that_nobody_opened(hold: AsyncHoldMQ) -> None:
    session = hold.session("c")
    assert await session.subscribe("a") == (True,)
    assert await session.deliver(Message(topic="a", payload=b"m", qos=1)) == 1
    for call in (session.touch, session.close):
        with pytest.raises(NoSessionError, match="this handle of the session 'c' has no epoch; expected open"):
            await call()
    await session.open("owner")
    await hold.session("c").drop()
    for of_epoch in (lambda: session.subscribe("a"), session.touch, session.close):
        with pytest.raises(NoSessionError, match="was not opened, or has expired"):
            await of_epoch()


async def test_each_owner_has_a_larger_epoch_also_after_a_drop(hold: AsyncHoldMQ) -> None:
    session = hold.session("c")
    assert (await session.info()).epoch == 0
    epochs = [(await session.open("a")).epoch, (await session.open("b")).epoch]
    await session.drop()
    epochs.append((await session.open("c")).epoch)
    assert epochs == sorted(set(epochs))
    assert (await session.info()).epoch == epochs[-1] > 1000, "no count"


async def test_an_incoming_message_is_received_once_until_it_is_complete(hold: AsyncHoldMQ) -> None:
    session = hold.session("device")
    await session.open("owner", expiry=60)
    assert [await session.receive(7), await session.receive(7), await session.receive(8)] == [True, False, True]
    assert await session.complete(7, 9) == 1
    assert await session.receive(7)


async def test_only_one_way_to_fetch_is_taken_at_a_time(hold: AsyncHoldMQ) -> None:
    with pytest.raises(ArgumentError, match="expected one at most"):
        await hold.session("device").fetch(after=1, window=1)
    with pytest.raises(ArgumentError, match="window is 0"):
        await hold.session("device").fetch(window=0)


async def test_a_lost_connection_publishes_its_will_and_a_closed_one_does_not(hold: AsyncHoldMQ) -> None:
    heir = hold.session("heir")
    await heir.subscribe("status/#", qos=1)
    session = hold.session("device")
    for lost in (False, True):
        await session.open("bridge", expiry=60, will=Will("status/device", b"gone", qos=1))
        await session.close(will=lost)
    page = await heir.fetch()
    assert [(message_of(entry).topic, message_of(entry).payload) for entry in page.entries] == [
        ("status/device", b"gone")
    ]


async def test_the_sessions_of_an_owner_that_stops_beating_are_closed(hold: AsyncHoldMQ) -> None:
    await hold.beat("reader", 60)
    session = hold.session("device")
    await session.open("reader", expiry=60)
    assert (await session.info()).ttl_ms is None
    await hold.beat("reader", 0)
    while (await session.info()).connected:
        pass
    assert (await session.info()).exists


async def test_members_of_a_shared_subscription_take_turns(hold: AsyncHoldMQ) -> None:
    members = [hold.session(name) for name in ("a", "b")]
    for member in members:
        await member.open("reader", expiry=60)
        await member.subscribe("$share/group/jobs/#", qos=1)
    for number in range(4):
        await hold.topics.publish("jobs/x", str(number), qos=1)
    for member, payloads in zip(members, ([b"0", b"2"], [b"1", b"3"]), strict=True):
        page = await member.fetch()
        assert [message_of(entry).payload for entry in page.entries] == payloads
        assert message_of(page.entries[0]).share == "$share/group/jobs/#"


async def test_all_sessions_are_listed_page_by_page(hold: AsyncHoldMQ) -> None:
    for number in range(5):
        session = hold.session(f"c{number}")
        await session.open("reader", expiry=60)
        await session.add(*[b"m"] * (number + 1))
        if number % 2:
            await session.close()
    rows = [row async for row in hold.sessions(page=2)]
    assert [(row.client_id, row.connected, row.messages) for row in rows] == [
        (f"c{number}", number % 2 == 0, number + 1) for number in range(5)
    ]
    assert [row.key async for row in hold.sessions(connected=True)] == ["{c0}", "{c2}", "{c4}"]


async def test_a_member_that_leaves_its_group_with_much_is_waited_for(hold: AsyncHoldMQ) -> None:
    member, other = hold.session("member"), hold.session("other")
    await member.open("b", expiry=600)
    await member.subscribe("$share/g/t")
    for _ in range(400):
        await hold.topics.publish("t", b"m", qos=1)
    await other.open("b", expiry=600)
    await other.subscribe("$share/g/t")
    await member.close()
    assert (await member.open("b", expiry=600)).present
    assert len([entry async for entry in other.entries()]) == 400
