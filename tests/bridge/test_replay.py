"""Clients that read the past: subscriptions that begin there, and sessions that are cursors into it."""

import time
from collections.abc import Callable

import paho.mqtt.client as paho
import pytest
import redis
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.bridge import packets, packets5
from tests.bridge.conftest import Connect
from tests.bridge.packets5 import pair
from tests.bridge.talk import Talk, Talk5
from tests.bridge.test_faults import Publisher, assert_complete, read_until
from tests.module import history_support as history
from tests.module.sessions_support import Session, publish
from tests.support import BridgeProcess, Server, eventually

MakeServer = Callable[..., Server]
MakeBridge = Callable[..., BridgeProcess]

EARLIEST = pair("replay-from", "earliest")
APPLICATION = pair("session-kind", "application")
AN_HOUR = packets5.number(0x11, 3600)
REASON_STRING, MESSAGE_EXPIRY = 0x1F, 0x02


@pytest.fixture(autouse=True)
def store(client: redis.Redis) -> None:
    """Everything below `a` is kept."""
    history.store(client, "h", "a/#", shards=2)


def keep(client: redis.Redis, count: int, topic: str = "a/t", *, first: int = 1, qos: int = 1) -> list[bytes]:
    """Publishes numbers; their payloads."""
    payloads = [b"%d" % number for number in range(first, first + count)]
    for payload in payloads:
        publish(client, topic, payload, qos=qos)
    return payloads


def numbers(talk: Talk, count: int) -> list[bytes]:
    """The payloads of the next messages."""
    return [talk.read_publish().payload for _ in range(count)]


# ---- Replays ---------------------------------------------------------------------------------------------------------


def test_a_subscription_with_a_start_gets_the_past_and_then_what_comes(
    talk5: Callable[..., Talk5], client: redis.Redis
) -> None:
    past = keep(client, 2500)
    reader = talk5("c")
    assert reader.granted(("a/#", 1), properties=EARLIEST) == [1]
    assert [reader.message().payload for _ in past] == past
    eventually(lambda: client.hgetall("{c}_subscriptions") == {b"a/#": b"1"}, what="the hand-over")
    assert publish(client, "a/t", b"live") == 1
    live = reader.message()
    assert (live.payload, live.retain) == (b"live", False)


def test_a_filter_of_3_1_1_names_its_start(talk: Connect, client: redis.Redis) -> None:
    past = keep(client, 30)
    reader = talk("c")
    reader.subscribe(("$replay/earliest/a/t", 1))
    assert numbers(reader, 30) == past
    for unsubscribed in ("$replay/earliest/a/t", "a/t"):
        reader.send(packets.unsubscribe(7, unsubscribed))
        reader.expect(packets.unsuback(7))
        assert not client.exists("{c}_subscriptions")
        reader.subscribe(("$replay/1h/a/t", 0))
        assert numbers(reader, 30) == past


def test_a_replay_delivers_with_the_qos_and_the_expiry_that_are_left(
    talk5: Callable[..., Talk5], client: redis.Redis
) -> None:
    publish(client, "a/1", b"zero", qos=0)
    publish(client, "a/1", b"one", qos=1, ttl=1000, retain=True)
    reader = talk5("c")
    assert reader.granted(("a/1", 2 | 32), properties=EARLIEST) == [2]
    zero, one = reader.message(), reader.message()
    assert (zero.payload, zero.qos) == (b"zero", 0)
    assert (one.payload, one.qos, one.retain) == (b"one", 1, False)
    assert 900 < one.properties[MESSAGE_EXPIRY] <= 1000


@pytest.mark.parametrize(
    ("topic_filter", "start", "code", "why"),
    [
        ("b/#", "earliest", 0x83, "no store keeps topics of the filter"),
        ("#", "earliest", 0x83, "does not keep"),
        ("a/#", "yesterday", 0x8F, "expected earliest, now"),
    ],
)
def test_what_cannot_be_replayed_is_refused_and_said(
    talk5: Callable[..., Talk5], client: redis.Redis, topic_filter: str, start: str, code: int, why: str
) -> None:
    reader = talk5("c")
    reader.send(
        packets5.subscribe(3, ("other", 1)),
        packets5.subscribe(4, (topic_filter, 1), properties=pair("replay-from", start)),
    )
    assert reader.read(9).codes == [1]
    answer = reader.read(9)
    assert answer.codes == [code]
    assert why in answer.properties[REASON_STRING].decode()
    assert client.hgetall("{c}_subscriptions") == {b"other": b"1"}


def test_anyone_who_wants_no_reasons_gets_none_with_a_suback(talk5: Callable[..., Talk5]) -> None:
    """[MQTT-3.1.2-29]."""
    reader = talk5("c", properties=packets5.number(0x17, 0))
    reader.send(packets5.subscribe(3, ("b", 1), properties=EARLIEST))
    reader.expect(packets5.suback(3, 0x83))


def test_of_several_filters_each_is_served_or_refused_by_itself(talk: Connect, client: redis.Redis) -> None:
    past = keep(client, 3)
    reader = talk("c")
    reader.send(
        packets.subscribe(5, ("$replay/earliest/b", 1), ("plain", 0), ("$replay/earliest/a/#", 1), ("$replay/x/a", 1))
    )
    reader.expect(packets.suback(5, 0x80, 0, 1, 0x80))
    assert numbers(reader, 3) == past


def test_a_client_that_reads_slowly_keeps_the_rest_in_history(talk: Connect, client: redis.Redis) -> None:
    keep(client, 4000)
    reader = talk("c", clean=False)
    reader.subscribe(("$replay/earliest/a/#", 1))
    session = Session(client)
    got = [reader.read_publish(acknowledge=False) for _ in range(100)]
    eventually(lambda: session.info()["messages"] > 100, what="a page behind the window")
    time.sleep(0.3)  # nothing else marks the moment when more than that would have been read
    assert session.info()["messages"] <= 100 + 1000
    for published in got:
        reader.send(packets.puback(published.pid))
    assert numbers(reader, 3900) == [b"%d" % number for number in range(101, 4001)]


def test_a_replay_continues_while_others_publish(broker: BridgeProcess, talk: Connect, client: redis.Redis) -> None:
    keep(client, 500, "a/old")
    publisher = Publisher(broker.port, "a/n")
    publisher.start()
    publisher.wait_for_more(200)
    reader = talk("c")
    reader.subscribe(("$replay/earliest/a/n", 1))
    publisher.wait_for_more(2000)
    last = publisher.finish()
    assert read_until(reader, last) == list(range(1, last + 1))


def test_a_replay_continues_through_another_bridge(
    server: Server, bridge: MakeBridge, dial: Connect, client: redis.Redis
) -> None:
    past = keep(client, 1500)
    one, other = bridge(server), bridge(server)
    first = dial(one.port, "c", clean=False)
    first.subscribe(("$replay/earliest/a/#", 1))
    got = numbers(first, 700)
    second = dial(other.port, "c", clean=False, present=True)
    while got[-1] != past[-1]:
        got.append(second.read_publish().payload)
    assert list(dict.fromkeys(got)) == past


def test_replays_are_limited_to_the_rate_of_backlogs(
    server: Server, bridge: MakeBridge, dial: Connect, client: redis.Redis
) -> None:
    keep(client, 40, qos=0)
    made = bridge(server, arguments=["--replay-rate", "20"])
    reader = dial(made.port, "c")
    begun = time.monotonic()
    reader.subscribe(("$replay/earliest/a/#", 0))
    numbers(reader, 40)
    assert time.monotonic() - begun > 1.0


def test_paho_reads_the_past_with_a_user_property(broker: BridgeProcess, client: redis.Redis) -> None:
    past = keep(client, 200)
    got: list[bytes] = []
    reader = paho.Client(CallbackAPIVersion.VERSION2, "paho", protocol=paho.MQTTv5)
    reader.on_message = lambda _client, _data, message: got.append(bytes(message.payload))
    reader.connect("127.0.0.1", broker.port)
    reader.loop_start()
    try:
        eventually(reader.is_connected)
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call] # paho's
        properties.UserProperty = [("replay-from", "24h")]
        reader.subscribe("a/#", options=SubscribeOptions(qos=2), properties=properties)
        eventually(lambda: len(got) >= len(past))
    finally:
        reader.disconnect()
        reader.loop_stop()
    assert got == past


def test_a_group_shares_the_past(talk: Connect, client: redis.Redis) -> None:
    past = keep(client, 300)
    readers = [talk(name) for name in "cd"]
    for reader in readers:
        reader.subscribe(("$share/g/$replay/earliest/a/#", 1))
    eventually(lambda: not client.exists("{$share/g/a/#}_replays"), what="the end of the replay")
    everything = past + keep(client, 20, first=301)
    shares: list[list[bytes]] = [[], []]

    def all_came() -> bool:
        for reader, share in zip(readers, shares, strict=True):
            for published in map(packets.read_publish, reader.collect()):
                reader.send(packets.puback(published.pid))
                share.append(published.payload)
        return sum(map(len, shares)) >= len(everything)

    eventually(all_came, what="all messages")
    assert sorted(shares[0] + shares[1], key=int) == everything
    assert min(map(len, shares)) >= 10


# ---- Applications ----------------------------------------------------------------------------------------------------


def test_an_application_reads_what_was_published_while_it_was_away(
    talk5: Callable[..., Talk5], client: redis.Redis
) -> None:
    with talk5("c", properties=APPLICATION + AN_HOUR, clean=False) as reader:
        assert reader.granted(("a/#", 1)) == [1]
        assert publish(client, "a/t", b"here") == 0
        assert reader.message().payload == b"here"
    past = keep(client, 3000)
    assert Session(client).info()["messages"] == 0
    back = talk5("c", properties=APPLICATION + AN_HOUR, clean=False)
    assert back.connack.present
    assert [back.message().payload for _ in past] == past
    assert back.granted(("a/#", 1)) == [1]
    assert publish(client, "a/t", b"more") == 0
    assert back.message().payload == b"more"
    assert client.hgetall("{c}_subscriptions") == {b"a/#": b"1@!"}


def test_an_application_with_a_start_begins_there(talk5: Callable[..., Talk5], client: redis.Redis) -> None:
    past = keep(client, 10)
    reader = talk5("c", properties=APPLICATION + AN_HOUR)
    assert reader.granted(("a/#", 1), properties=EARLIEST) == [1]
    assert [reader.message().payload for _ in past] == past
    assert client.hgetall("{c}_subscriptions") == {b"a/#": b"1@!"}


def test_what_no_store_keeps_comes_to_an_application_as_to_others(
    talk5: Callable[..., Talk5], client: redis.Redis
) -> None:
    reader = talk5("c", properties=APPLICATION + AN_HOUR)
    assert reader.granted(("commands", 1), ("a/#", 1), ("$share/g/a/#", 1)) == [1, 1, 1]
    assert client.hgetall("{c}_subscriptions") == {b"commands": b"1", b"a/#": b"1@!", b"$share/g/a/#": b"1"}
    assert publish(client, "commands", b"now") == 1
    assert reader.message().payload == b"now"


def test_a_kind_that_nobody_knows_is_refused(broker: BridgeProcess) -> None:
    with Talk5(broker.port) as talk:
        talk.send(packets5.connect("c", properties=pair("session-kind", "queue")))
        answer = talk.read(2)
        assert answer.code == 0x83
        assert b"expected application or device" in answer.properties[REASON_STRING]


def test_the_setting_and_the_user_decide_on_the_kind(server: Server, bridge: MakeBridge, client: redis.Redis) -> None:
    made = bridge(server, arguments=["--session-kind", "application", "--certificate-name", "none"])
    with Talk.connected(made.port, "by-setting", clean=False) as reader:
        reader.subscribe(("a/#", 1))
    with Talk5.open(made.port, "by-wish", properties=pair("session-kind", "device")) as wish:
        assert wish.granted(("a/#", 1)) == [1]
        assert client.hget("{by-setting}_subscriptions", "a/#") == b"1@!"
        assert client.hget("{by-wish}_subscriptions", "a/#") == b"1"


def test_news_wake_every_application_of_a_store_and_no_other(talk5: Callable[..., Talk5], client: redis.Redis) -> None:
    history.store(client, "other", "b/#")
    readers = {topic: talk5(topic[0], properties=APPLICATION) for topic in ("a/1", "b/1")}
    for topic, reader in readers.items():
        assert reader.granted((topic, 1)) == [1]
    for number in range(20):
        for topic, reader in readers.items():
            publish(client, topic, b"%d" % number)
            assert reader.message().payload == b"%d" % number


# ---- Faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["device", "application"])
def test_a_bridge_that_is_killed_amid_a_replay_loses_nothing(
    server: Server, bridge: MakeBridge, broker: BridgeProcess, client: redis.Redis, kind: str
) -> None:
    made = bridge(server, arguments=["--session-kind", kind])
    keep(client, 1000, "a/n")
    publisher = Publisher(broker.port, "a/m")
    publisher.start()
    got_n: list[int] = []
    got_m: list[int] = []
    seen: set[tuple[str, int]] = set()
    reader = Talk.connected(made.port, "c", clean=False)
    reader.send(packets.subscribe(1, ("$replay/earliest/a/#", 2)))
    reader.expect(packets.suback(1, 2))
    last = 0
    for round_ in range(3):
        try:
            while not last or got_m[-1:] != [last] or len(got_n) < 1000:
                published = packets.read_publish(reader.read_packet())
                assert published.qos == 1
                reader.send(packets.puback(published.pid))
                number = int(published.payload)
                if (published.topic, number) not in seen:  # QoS 1: some may come twice
                    seen.add((published.topic, number))
                    (got_n if published.topic == "a/n" else got_m).append(number)
                if not last and round_ < 2 and len(seen) % 400 == 399:
                    break
            else:
                break
        finally:
            reader.close()
        if round_ < 1:
            publisher.wait_for_more(50)
        elif not last:
            last = publisher.finish()
        made.kill()
        made.restart()
        reader = Talk.connected(made.port, "c", clean=False, present=True)
    reader.close()
    assert got_n == list(range(1, 1001))
    assert_complete(got_m, last)


def test_qos_2_of_a_replay_comes_exactly_once_though_the_bridge_is_killed(
    server: Server, bridge: MakeBridge, client: redis.Redis
) -> None:
    made = bridge(server)
    keep(client, 600, qos=2)
    reader = Talk.connected(made.port, "c", clean=False)
    reader.send(packets.subscribe(1, ("$replay/earliest/a/#", 2)))
    reader.expect(packets.suback(1, 2))
    got: list[int] = []
    open_ids: set[int] = set()
    kills = 0
    while len(got) < 600 or open_ids:
        data = reader.read_packet()
        if data[0] >> 4 == 3:
            published = packets.read_publish(data)
            if published.pid not in open_ids:  # else it was taken before: the id is in use until PUBREL
                open_ids.add(published.pid)
                got.append(int(published.payload))
            reader.send(packets.pubrec(published.pid))
        else:
            assert data[0] == 0x62
            pid = int.from_bytes(data[2:4], "big")
            open_ids.discard(pid)
            reader.send(packets.pubcomp(pid))
        if len(got) == 150 * (kills + 1) and kills < 2:
            kills += 1
            made.kill()
            reader.close()
            made.restart()
            reader = Talk.connected(made.port, "c", clean=False, present=True)
    reader.close()
    assert got == list(range(1, 601))
