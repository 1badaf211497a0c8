# Generated from tests/client/_async/test_sessions.py by tools/generate_sync.py; change that file.
"""Sessions: the queue, its pages and acknowledgements, owners and subscriptions."""

import pytest
import redis

from holdmq import (
    AddResult,
    ArgumentError,
    CommandError,
    Entry,
    EntryState,
    FencedError,
    HoldMQ,
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


def test_messages_come_back_in_the_order_in_which_they_were_added(hold: HoldMQ) -> None:
    session = hold.session("device")
    assert session.add(b"one") == AddResult((1,), 1, 0, 0)
    assert session.add("two", bytearray(b"three")) == AddResult((2, 3), 3, 0, 0)
    page = session.fetch()
    assert page.entries == (
        Entry(1, 1, EntryState.QUEUED, b"one"),
        Entry(2, 2, EntryState.QUEUED, b"two"),
        Entry(3, 3, EntryState.QUEUED, b"three"),
    )
    assert (page.more, page.expired) == (False, 0)
    assert session.last() == 3


def test_a_queue_is_read_in_pages_from_a_serial_on(hold: HoldMQ) -> None:
    session = hold.session("device")
    payloads = [f"{number}".encode() for number in range(25)]
    session.add(*payloads)
    page = session.fetch(after=5, count=10)
    assert [entry.serial for entry in page.entries] == list(range(6, 16))
    assert page.more
    sizes = [len(page.entries) for page in session.pages(count=10)]
    assert sizes == [10, 10, 5]
    assert [entry.value for entry in session.entries(count=4)] == payloads


def test_a_page_is_bounded_by_bytes_and_has_one_message_at_least(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.add(b"x" * 1000, b"y" * 1000, b"z" * 1000)
    assert [len(page.entries) for page in session.pages(max_bytes=1)] == [1, 1, 1]


def test_acknowledged_messages_are_gone(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.add(b"a", b"b", b"c")
    assert session.ack(1, 3, 9) == 2
    assert [entry.packet_id for entry in session.entries()] == [2]


def test_the_oldest_beyond_the_limit_are_trimmed(hold: HoldMQ) -> None:
    session = hold.session("device")
    assert (session.add(b"a", b"b", b"c", limit=2)).trimmed == 1
    assert [entry.value for entry in session.entries()] == [b"b", b"c"]


def test_messages_live_as_long_as_requested(hold: HoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    session.add_expiring((b"short", 5), (b"long", None), (b"longer", 500), ttl=50)
    session.add(b"default ttl", ttl=40)
    lives = [client.ttl(f"{{device}}_messages_{packet_id}") for packet_id in (1, 2, 3, 4)]
    for life, expected in zip(lives, (5, 50, 500, 40), strict=True):
        assert expected - 3 <= life <= expected


def test_expired_messages_are_dropped_and_counted(hold: HoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    session.add(b"a", b"b")
    client.pexpire("{device}_messages_1", 1)
    eventually(lambda: not client.exists("{device}_messages_1"))
    page = session.fetch()
    assert ([entry.value for entry in page.entries], page.expired) == ([b"b"], 1)


def test_payloads_that_read_like_options_are_payloads(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.add("LIMIT", "5", "EXPIRING", "MESSAGES")
    session.add("TTL")
    values = [entry.value for entry in session.entries()]
    assert values == [b"LIMIT", b"5", b"EXPIRING", b"MESSAGES", b"TTL"]


@pytest.mark.parametrize("client_id", ["{}", "a}b{c", "100%", b"\xff\xfe{", "sensor/1"])
def test_no_client_id_defeats_the_hash_tag(hold: HoldMQ, client: redis.Redis, client_id: str) -> None:
    hold.session(client_id).add(b"x")
    assert [entry.value for entry in hold.session(client_id).entries()] == [b"x"]
    keys = list(client.scan_iter())
    tags = {key[key.index(b"{") : key.index(b"}") + 1] for key in keys}
    assert len(tags) == 1
    assert all(key.count(b"{") == key.count(b"}") == 1 for key in keys)


def test_a_prefix_precedes_the_key(hold: HoldMQ, client: redis.Redis) -> None:
    hold.session("device", prefix="tbmq:").add(b"x")
    assert client.exists("tbmq:{device}_messages") == 1
    assert (hold.session("device").info()).messages == 0


def test_a_session_is_opened_kept_and_closed(hold: HoldMQ) -> None:
    session = hold.session("device")
    opened = session.open("first", expiry=100)
    assert opened.epoch > 0
    assert (opened.present, session.epoch) == (False, opened.epoch)
    session.touch()
    info = session.info()
    assert (info.exists, info.owner, info.epoch) == (True, "first", opened.epoch)
    assert (info.connected, info.expiry) == (True, 100)
    session.close()
    info = session.info()
    assert (info.exists, info.connected) == (True, False)
    assert info.ttl_ms is not None
    assert 0 < info.ttl_ms <= 100_000
    second = hold.session("device").open("second", expiry=100)
    assert second.present
    assert second.epoch > opened.epoch


def test_a_session_that_nobody_opened_has_an_info_too(hold: HoldMQ) -> None:
    info = hold.session("nobody").info()
    assert (info.exists, info.owner, info.epoch, info.connected, info.messages) == (False, "", 0, False, 0)
    assert (info.subscriptions, info.ttl_ms) == (0, None)


def test_a_session_of_another_identity_is_refused(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("first", expiry=100, identity="user:alice")
    session.add(b"x")
    with pytest.raises(IdentityError, match="belongs to 'user:alice'"):
        hold.session("device").open("second", identity="user:bob")
    assert (session.info()).identity == "user:alice"
    assert [row.identity for row in hold.sessions()] == ["user:alice"]
    assert (session.open("program", expiry=100)).present  # who does not say is not asked
    assert ((session.info()).identity, (session.info()).messages) == ("user:alice", 1)


def test_a_former_owner_is_refused_every_write(hold: HoldMQ) -> None:
    former, present = hold.session("device"), hold.session("device")
    former.open("former", expiry=100)
    former.add(b"x")
    present.open("present", expiry=100)
    with pytest.raises(FencedError):
        former.touch()
    with pytest.raises(FencedError):
        former.ack(1)
    with pytest.raises(FencedError):
        former.subscribe("a")
    with pytest.raises(FencedError):
        former.fetch()
    with pytest.raises(FencedError):
        former.drop()
    with pytest.raises(FencedError):
        former.close()
    assert present.ack(1) == 1


def test_a_clean_start_drops_what_was_there(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("first", expiry=100)
    session.add(b"x")
    opened = session.open("second", clean=True, expiry=100)
    assert not opened.present
    assert (session.info()).messages == 0


def test_a_session_closed_with_expiry_0_is_gone(hold: HoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    session.open("owner", expiry=100)
    session.add(b"x")
    session.close(expiry=0)
    assert not (session.info()).exists
    assert client.keys("{device}*") == []


def test_a_session_that_was_never_opened_cannot_be_touched_or_closed(hold: HoldMQ) -> None:
    session = hold.session("device", epoch=1)
    for refused in (session.touch, session.close):
        with pytest.raises((NoSessionError, FencedError)):
            refused()


def test_drop_reports_how_many_messages_there_were(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.add(b"a", b"b")
    assert session.drop() == 2
    assert session.drop() == 0


def test_subscriptions_keep_their_options(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("owner", expiry=100)
    options = SubscriptionOptions(2, no_local=True, retain_as_published=True, retain_handling=2)
    assert session.subscribe("a/+", "b/#") == (True, True)
    assert session.subscribe_each({"a/+": options, "EPOCH": SubscriptionOptions(0)}) == (False, True)
    assert session.subscriptions() == {
        "a/+": options,
        "b/#": SubscriptionOptions(1),
        "EPOCH": SubscriptionOptions(0),
    }
    assert session.unsubscribe("a/+", "c") == (True, False)
    assert set(session.subscriptions()) == {"b/#", "EPOCH"}


def test_all_subscriptions_are_listed_however_many_there_are(hold: HoldMQ) -> None:
    session = hold.session("device")
    filters = {f"d/{number}" for number in range(12_000)}
    for start in range(0, 12_000, 1_000):
        session.subscribe(*(f"d/{number}" for number in range(start, start + 1_000)))
    assert set(session.subscriptions()) == filters


def test_a_published_message_waits_in_the_session_that_subscribed(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("owner", expiry=100)
    session.subscribe("weather/+", qos=1)
    assert hold.topics.publish("weather/oslo", b"\x00snow", qos=2, publisher="station") == 1
    (entry,) = [entry for entry in session.entries()]
    message = entry.message
    assert isinstance(message, Message)
    assert (message.topic, message.payload, message.qos) == ("weather/oslo", b"\x00snow", 1)
    assert (message.retain, message.publisher) == (False, "station")


def test_an_entry_that_is_not_a_record_says_so(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.add(b'{"packetId": 1}')
    (entry,) = [entry for entry in session.entries()]
    with pytest.raises(ArgumentError, match="record"):
        _ = entry.message


def test_a_message_is_added_as_a_record(hold: HoldMQ) -> None:
    message = Message(
        topic="a/b", payload=b"x", qos=1, time_ms=1_700_000_000_000, publisher="me", properties=b"\x01\x01"
    )
    session = hold.session("device")
    session.add(message.to_record())
    assert [entry.message for entry in session.entries()] == [message]


def test_filters_that_mqtt_forbids_are_refused_before_anything_is_sent(hold: HoldMQ) -> None:
    session = hold.session("device")
    for wrong in ("", "a/#/b", "a+", "a\0b", "$share/g"):
        with pytest.raises(InvalidTopicError):
            session.subscribe(wrong)
        with pytest.raises(InvalidTopicError):
            session.unsubscribe("fine", wrong)


def test_numbers_outside_of_their_range_are_refused_before_anything_is_sent(hold: HoldMQ) -> None:
    session = hold.session("device")
    with pytest.raises(ArgumentError, match="limit is 0; expected a whole number from 1 to 65535"):
        session.add(b"x", limit=0)
    with pytest.raises(ArgumentError, match="ttl is 2147483648"):
        session.add(b"x", ttl=2**31)
    with pytest.raises(ArgumentError, match="ttl of a message is 0"):
        session.add_expiring((b"x", 0))
    with pytest.raises(ArgumentError, match="packet_id is 65536"):
        session.ack(1, 65536)
    with pytest.raises(ArgumentError, match="0 packet_ids were given"):
        session.ack()
    with pytest.raises(ArgumentError, match="count is 10001"):
        session.fetch(count=10_001)
    with pytest.raises(ArgumentError, match="expiry is -1"):
        session.close(expiry=-1)
    with pytest.raises(ArgumentError, match="client_id is empty"):
        hold.session("")
    with pytest.raises(ArgumentError, match="epoch is -1"):
        hold.session("device", epoch=-1)
    assert (session.info()).messages == 0


def test_a_key_of_another_type_is_refused(hold: HoldMQ, client: redis.Redis) -> None:
    client.set("{device}_messages", "a string")
    with pytest.raises(WrongTypeError) as caught:
        hold.session("device").add(b"x")
    assert isinstance(caught.value, redis.ResponseError)
    assert isinstance(caught.value, CommandError)


def test_a_window_hands_out_no_more_than_may_be_unacknowledged(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.add(*[f"{number}".encode() for number in range(10)])
    page = session.fetch(window=4)
    assert ([entry.value for entry in page.entries], page.more) == ([b"0", b"1", b"2", b"3"], True)
    assert (session.fetch(window=4)).entries == ()
    inflight = session.fetch(inflight=True)
    assert [(entry.packet_id, entry.state) for entry in inflight.entries] == [
        (number, EntryState.INFLIGHT) for number in (1, 2, 3, 4)
    ]
    acked = session.ack_next(1, 2, count=2)
    assert acked.removed == 2
    assert [entry.value for entry in acked.page.entries] == [b"4", b"5"]
    assert [entry.value for entry in (session.fetch(window=10, count=1)).entries] == [b"6"]


def test_what_was_sent_by_other_ways_is_in_flight(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("owner", expiry=60)
    session.add(b"a", b"b", b"c")
    session.sent(2)
    assert [entry.value for entry in (session.fetch(inflight=True)).entries] == [b"a", b"b"]
    assert [entry.value for entry in (session.fetch(window=10)).entries] == [b"c"]
    session.close(sent=3)


def test_a_released_message_keeps_its_identifier_and_its_time_to_live(hold: HoldMQ, client: redis.Redis) -> None:
    session = hold.session("device")
    session.add(Message(topic="a", payload=b"x" * 1000, qos=2).to_record(), ttl=100)
    session.fetch(window=1)
    assert session.release(1, 2) == 1
    (entry,) = [entry for entry in session.entries()]
    assert (entry.packet_id, entry.state) == (1, EntryState.RELEASED)
    assert len(entry.value) < 100
    assert entry.message is None
    with pytest.raises(ArgumentError, match="without a message"):
        Message.from_record(entry.value)
    assert 90 < client.ttl("{device}_messages_1") <= 100
    assert session.ack(1) == 1


def test_a_released_entry_has_no_message(hold: HoldMQ) -> None:
    session = hold.session("c")
    session.subscribe("a", qos=2)
    for text in ("one", "two"):
        hold.topics.publish("a", text, qos=2)
    session.release(1)
    entries = (session.fetch()).entries
    assert [entry.message and entry.message.payload for entry in entries] == [None, b"two"]


def test_a_handle_without_an_epoch_fills_a_session_that_nobody_opened(hold: HoldMQ) -> None:
    session = hold.session("c")
    assert session.subscribe("a") == (True,)
    assert session.deliver(Message(topic="a", payload=b"m", qos=1)) == 1
    for call in (session.touch, session.close):
        with pytest.raises(NoSessionError, match="this handle of the session 'c' has no epoch; expected open"):
            call()
    session.open("owner")
    hold.session("c").drop()
    for of_epoch in (lambda: session.subscribe("a"), session.touch, session.close):
        with pytest.raises(NoSessionError, match="was not opened, or has expired"):
            of_epoch()


def test_each_owner_has_a_larger_epoch_also_after_a_drop(hold: HoldMQ) -> None:
    session = hold.session("c")
    assert (session.info()).epoch == 0
    epochs = [(session.open("a")).epoch, (session.open("b")).epoch]
    session.drop()
    epochs.append((session.open("c")).epoch)
    assert epochs == sorted(set(epochs))
    assert (session.info()).epoch == epochs[-1] > 1000, "no count"


def test_an_incoming_message_is_received_once_until_it_is_complete(hold: HoldMQ) -> None:
    session = hold.session("device")
    session.open("owner", expiry=60)
    assert [session.receive(7), session.receive(7), session.receive(8)] == [True, False, True]
    assert session.complete(7, 9) == 1
    assert session.receive(7)


def test_only_one_way_to_fetch_is_taken_at_a_time(hold: HoldMQ) -> None:
    with pytest.raises(ArgumentError, match="expected one at most"):
        hold.session("device").fetch(after=1, window=1)
    with pytest.raises(ArgumentError, match="window is 0"):
        hold.session("device").fetch(window=0)


def test_a_lost_connection_publishes_its_will_and_a_closed_one_does_not(hold: HoldMQ) -> None:
    heir = hold.session("heir")
    heir.subscribe("status/#", qos=1)
    session = hold.session("device")
    for lost in (False, True):
        session.open("bridge", expiry=60, will=Will("status/device", b"gone", qos=1))
        session.close(will=lost)
    page = heir.fetch()
    assert [(message_of(entry).topic, message_of(entry).payload) for entry in page.entries] == [
        ("status/device", b"gone")
    ]


def test_the_sessions_of_an_owner_that_stops_beating_are_closed(hold: HoldMQ) -> None:
    hold.beat("reader", 60)
    session = hold.session("device")
    session.open("reader", expiry=60)
    assert (session.info()).ttl_ms is None
    hold.beat("reader", 0)
    while (session.info()).connected:
        pass
    assert (session.info()).exists


def test_members_of_a_shared_subscription_take_turns(hold: HoldMQ) -> None:
    members = [hold.session(name) for name in ("a", "b")]
    for member in members:
        member.open("reader", expiry=60)
        member.subscribe("$share/group/jobs/#", qos=1)
    for number in range(4):
        hold.topics.publish("jobs/x", str(number), qos=1)
    for member, payloads in zip(members, ([b"0", b"2"], [b"1", b"3"]), strict=True):
        page = member.fetch()
        assert [message_of(entry).payload for entry in page.entries] == payloads
        assert message_of(page.entries[0]).share == "$share/group/jobs/#"


def test_all_sessions_are_listed_page_by_page(hold: HoldMQ) -> None:
    for number in range(5):
        session = hold.session(f"c{number}")
        session.open("reader", expiry=60)
        session.add(*[b"m"] * (number + 1))
        if number % 2:
            session.close()
    rows = [row for row in hold.sessions(page=2)]
    assert [(row.client_id, row.connected, row.messages) for row in rows] == [
        (f"c{number}", number % 2 == 0, number + 1) for number in range(5)
    ]
    assert [row.key for row in hold.sessions(connected=True)] == ["{c0}", "{c2}", "{c4}"]


def test_a_member_that_leaves_its_group_with_much_is_waited_for(hold: HoldMQ) -> None:
    member, other = hold.session("member"), hold.session("other")
    member.open("b", expiry=600)
    member.subscribe("$share/g/t")
    for _ in range(400):
        hold.topics.publish("t", b"m", qos=1)
    other.open("b", expiry=600)
    other.subscribe("$share/g/t")
    member.close()
    assert (member.open("b", expiry=600)).present
    assert len([entry for entry in other.entries()]) == 400
