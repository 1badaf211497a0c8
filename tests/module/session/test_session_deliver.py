"""SESSION.DELIVER hands messages to one session as a publish that matches would."""

from dataclasses import replace

import pytest
import redis

from holdmq import Message
from holdmq.core import DeliveryKind
from tests.module.sessions_support import Inbox, now_ms, unchanged
from tests.support import Server

MESSAGE = Message(topic="a/b", payload=b"m", qos=1, retain=True, time_ms=1, publisher="p", properties=b"\x01\x00")


def deliver(client: redis.Redis, *messages: Message) -> int:
    """What the command replies."""
    return int(client.execute_command("SESSION.DELIVER", "{c}", *[message.to_record() for message in messages]))


def queued(client: redis.Redis) -> list[Message]:
    """What is in the queue."""
    entries, _more, _expired = client.execute_command("SESSION.FETCH", "{c}")
    return [Message.from_record(entry[3]) for entry in entries]


def test_each_message_is_stored_with_its_own_qos_and_retain_flag(client: redis.Redis) -> None:
    messages = [MESSAGE, replace(MESSAGE, qos=2, retain=False, payload=b""), replace(MESSAGE, topic="c")]
    assert deliver(client, *messages) == 3
    assert queued(client) == messages


def test_qos_0_and_what_is_stored_reach_the_inbox(server: Server, client: redis.Redis) -> None:
    assert deliver(client, replace(MESSAGE, qos=0)) == 0  # nobody listens
    with Inbox(server) as inbox:
        assert deliver(client, replace(MESSAGE, qos=0), MESSAGE) == 2
        taken = inbox.take()
    assert [delivery.kind for delivery in taken] == [DeliveryKind.TRANSIENT, DeliveryKind.QUEUED]
    assert [delivery.retain for delivery in taken] == [True, True]
    assert queued(client) == [MESSAGE]


def test_what_has_expired_is_passed_over_and_the_rest_keeps_its_expiry(client: redis.Redis) -> None:
    living = replace(MESSAGE, expires_ms=now_ms(client) + 50_000)
    assert deliver(client, replace(MESSAGE, expires_ms=now_ms(client) - 1), living) == 1
    assert queued(client) == [living]
    assert client.execute_command("PEXPIRETIME", "{c}_messages_1") >= living.expires_ms


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["{c}"], "record is missing; expected at least one message"),
        (["{c}", "EPOCH", 0], "record is missing"),
        (["c", MESSAGE.to_record()], "the session key is 'c'"),
        (["{c}", "plain"], "the message 'plain' is not the record"),
        (["{c}", MESSAGE.to_record(), MESSAGE.to_record()[:8]], "is not the record of a published message"),
        (["{c}", replace(MESSAGE, topic="a/#").to_record()], "is not the record of a published message"),
        (["{c}", "EPOCH", 1, MESSAGE.to_record()], "^NOSESSION"),
    ],
)
def test_what_cannot_be_delivered_is_refused_before_anything_is_stored(
    client: redis.Redis, words: list[str | int | bytes], error: str
) -> None:
    with unchanged(client), pytest.raises(redis.ResponseError, match=error):
        client.execute_command("SESSION.DELIVER", *words)


def test_only_the_owner_delivers_under_an_epoch(client: redis.Redis) -> None:
    first, _ = client.execute_command("SESSION.OPEN", "{c}", "OWNER", "a", "EXPIRY", 60)
    second, _ = client.execute_command("SESSION.OPEN", "{c}", "OWNER", "b", "EXPIRY", 60)
    with pytest.raises(redis.ResponseError, match=r"^FENCED"):
        client.execute_command("SESSION.DELIVER", "{c}", "EPOCH", first, MESSAGE.to_record())
    assert client.execute_command("SESSION.DELIVER", "{c}", "EPOCH", second, MESSAGE.to_record()) == 1


def test_retained_messages_are_listed_with_their_values(client: redis.Redis) -> None:
    client.execute_command("TOPIC.PUBLISH", "a/b", "one", "QOS", 2, "RETAIN", "TTL", 100, "FROM", "p")
    client.execute_command("TOPIC.PUBLISH", "a/c", "two", "RETAIN")
    [one] = [Message.from_record(item) for item in client.execute_command("TOPIC.RETAINED", "a/b", "VALUES")]
    assert (one.topic, one.payload, one.qos, one.retain, one.publisher) == ("a/b", b"one", 2, True, "p")
    assert one.expires_ms == client.execute_command("PEXPIRETIME", "{a/b}_retained")
    assert len(client.execute_command("TOPIC.RETAINED", "#", "COUNT", 1, "VALUES")) == 1
    assert len(client.execute_command("TOPIC.RETAINED", "#", "VALUES")) == 2


def test_slots_are_for_clusters(client: redis.Redis) -> None:
    for command in (["TOPIC.PUBLISH", "a", "m"], ["TOPIC.RETAINED", "a"]):
        with pytest.raises(redis.ResponseError, match="SLOTS is accepted by nodes of a cluster only"):
            client.execute_command(*command, "SLOTS", 1, 0, 1)
