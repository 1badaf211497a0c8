"""MQTT clients that others wrote go through their usual steps at the bridge, with MQTT 3.1.1 and 5.0.

They are paho-mqtt, gmqtt, MQTT.js, and mosquitto_pub and mosquitto_sub.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support import BridgeProcess, Server, embedded_kinds, eventually
from tests.system.mqtt_libraries import Client, Message, Paho, Properties
from tests.system.mqtt_library_gmqtt import Gmqtt
from tests.system.mqtt_library_processes import Mosquitto, MqttJs

server_kinds = embedded_kinds

LIBRARIES = [Paho, Gmqtt, MqttJs, Mosquitto]
VERSIONS = {"3.1.1": 4, "5.0": 5}
Make = Callable[..., Client]

each_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
only_5 = pytest.mark.parametrize("version", [5], ids=["5.0"])


@pytest.fixture(scope="module")
def shared_bridge(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """One bridge for all tests of this file."""
    made = BridgeProcess(shared_server.url, tmp_path_factory.mktemp("bridge"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.__name__.lower())
def make(
    request: pytest.FixtureRequest,
    server: Server,  # noqa: ARG001 (it is emptied)
    shared_bridge: BridgeProcess,
    version: int,
) -> Iterator[Make]:
    """Makes clients of one library that are connected, `make("c1", clean=False)` for one."""
    cleanup = contextlib.ExitStack()

    def build(client_id: str, *, clean: bool = True, will: Message | None = None, present: bool = False) -> Client:
        client: Client = request.param(shared_bridge.port, client_id, version, clean=clean, will=will)
        cleanup.callback(client.stop)
        assert client.start() == (present and client.tells_session_present)
        return client

    with cleanup:
        yield build


@each_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_reach_wildcards_in_their_order_and_with_their_qos(make: Make, qos: int) -> None:
    one_level, many_levels, sender = make("plus"), make("hash"), make("sender")
    one_level.subscribe("house/+/temp", qos)
    many_levels.subscribe("house/#", qos)
    sent = [Message(f"house/{room}/{what}", room, qos) for room in ("bath", "attic") for what in ("temp", "light")]
    for message in sent:
        sender.publish(message)
    assert one_level.take(2) == sent[::2]
    assert many_levels.take(4) == sent
    one_level.expect_nothing()


@each_version
def test_a_subscription_gets_the_smaller_qos(make: Make) -> None:
    receiver, sender = make("receiver"), make("sender")
    receiver.subscribe("a", 1)
    sender.publish(Message("a", "two", 2))
    sender.publish(Message("a", "zero", 0))
    assert receiver.take(2) == [Message("a", "two", 1), Message("a", "zero", 0)]


@each_version
def test_a_retained_message_waits_for_new_subscriptions_until_it_is_removed(make: Make) -> None:
    sender, receiver = make("sender"), make("receiver")
    sender.publish(Message("r/1", "old", 1, retain=True))
    sender.publish(Message("r/1", "kept", 1, retain=True))
    sender.publish(Message("r/2", "kept, too", 1, retain=True))
    receiver.subscribe("r/#", 1)
    assert set(receiver.take(2)) == {Message("r/1", "kept", 1, True), Message("r/2", "kept, too", 1, True)}
    sender.publish(Message("r/1", "live", 1, retain=True))
    assert receiver.next() == Message("r/1", "live", 1)
    for topic in ("r/1", "r/2"):
        sender.publish(Message(topic, "", 1, retain=True))
    late = make("late")
    late.subscribe("r/#", 1)
    late.expect_nothing()


@each_version
def test_the_will_of_a_client_that_vanishes_is_published(make: Make) -> None:
    watcher = make("watcher")
    watcher.subscribe("status/#", 1)
    orderly = make("orderly", will=Message("status/orderly", "gone", 1))
    orderly.subscribe("x", 0)
    orderly.stop()
    if orderly.asks_for_its_will:
        assert watcher.next() == Message("status/orderly", "gone", 1)
    doomed = make("doomed", will=Message("status/doomed", "gone", 1, retain=True))
    doomed.subscribe("x", 0)
    doomed.vanish()
    assert watcher.next() == Message("status/doomed", "gone", 1)
    watcher.expect_nothing()
    late = make("late")
    late.subscribe("status/#", 1)
    assert late.next() == Message("status/doomed", "gone", 1, retain=True)


@each_version
@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_keeps_what_came_while_its_client_was_away(make: Make, qos: int) -> None:
    receiver, sender = make("keeper", clean=False), make("sender")
    receiver.subscribe("d/+", qos)
    receiver.stop()
    sent = [Message(f"d/{number % 3}", str(number), qos) for number in range(12)]
    for message in sent:
        sender.publish(message)
    receiver = make("keeper", clean=False, present=True)
    assert receiver.take(12) == sent
    sender.publish(Message("d/1", "live", qos))
    assert receiver.next() == Message("d/1", "live", qos)
    receiver.expect_nothing()


@each_version
def test_a_client_that_comes_twice_is_taken_over(make: Make) -> None:
    make("c1", clean=False).subscribe("a", 1)
    second = make("c1", clean=False, present=True)
    make("sender").publish(Message("a", "x", 1))
    assert second.next() == Message("a", "x", 1)


@only_5
def test_the_properties_of_a_message_arrive_as_they_were(make: Make) -> None:
    receiver, sender = make("receiver"), make("sender")
    properties = Properties(
        user=(("unit", "°C"), ("unit 2", "")),
        content_type="text/plain; charset=utf-8",
        response_topic="answers/1",
        correlation="17-a",
        expiry_s=1000,
    )
    receiver.subscribe("a", 2)
    for qos in (0, 1, 2):
        sender.publish(Message("a", "12.5", qos, properties=properties))
        assert receiver.next() == Message("a", "12.5", qos, properties=properties)


@only_5
def test_what_waits_keeps_its_properties_until_it_expires(make: Make, client: redis.Redis) -> None:
    receiver, sender = make("keeper", clean=False), make("sender")
    receiver.subscribe("a", 1)
    receiver.stop()
    sender.publish(Message("a", "kept", 1, properties=Properties(user=(("k", "v"),), expiry_s=100)))
    sender.publish(Message("a", "soon over", 1, properties=Properties(expiry_s=1)))

    def expired() -> bool:
        entries, _more, _expired = client.execute_command("SESSION.FETCH", "{keeper}")
        return len(entries) == 1

    eventually(expired, what="the end of the second message")
    got = make("keeper", clean=False, present=True).next()
    assert (got.payload, got.properties.user) == ("kept", (("k", "v"),))
    assert 90 < got.properties.expiry_s < 100


@only_5
def test_a_message_names_the_subscription_that_it_is_for(make: Make) -> None:
    receiver, sender = make("receiver"), make("sender")
    receiver.subscribe("a/+", 1, identifier=7)
    sender.publish(Message("a/b", "x", 1))
    assert receiver.next() == Message("a/b", "x", 1, properties=Properties(identifiers=(7,)))


@only_5
def test_a_request_is_answered_where_its_response_topic_says(make: Make) -> None:
    asking, answering = make("asking"), make("answering")
    asking.subscribe("answers/asking", 1)
    answering.subscribe("questions", 1)
    asking.publish(
        Message("questions", "6 * 7?", 1, properties=Properties(response_topic="answers/asking", correlation="q1"))
    )
    question = answering.next()
    answer = Properties(correlation=question.properties.correlation)
    answering.publish(Message(question.properties.response_topic, "42", 1, properties=answer))
    assert asking.next() == Message("answers/asking", "42", 1, properties=Properties(correlation="q1"))


@each_version
def test_two_members_of_a_group_share_its_messages(make: Make) -> None:
    one, two, sender = make("one"), make("two"), make("sender")
    for member in (one, two):
        member.subscribe("$share/workers/jobs/#", 1)
    sent = [Message("jobs/a", str(number), 1) for number in range(20)]
    for message in sent:
        sender.publish(message)
    eventually(lambda: one.received.qsize() + two.received.qsize() >= len(sent), what="all jobs with somebody")
    shares = [member.take(member.received.qsize()) for member in (one, two)]
    assert all(shares)
    assert sorted(shares[0] + shares[1], key=lambda message: int(message.payload)) == sent
    for member in (one, two):
        member.expect_nothing()
