"""How many sessions and retained messages there may be: holdmq.max-sessions, holdmq.max-retained."""

import redis

from holdmq import core
from tests.module.sessions_support import (
    Session,
    Will,
    error_of,
    publish,
    retained_topics,
    unchanged,
)


def test_a_session_too_many_is_refused_and_those_that_are_there_continue(client: redis.Redis) -> None:
    client.config_set("holdmq.max-sessions", 2)
    sessions = [Session(client, f"{{{name}}}") for name in "ab"]
    for session in sessions:
        session.open("bridge", expiry=60)
    before = client.info("holdmq")["holdmq_sessions_refused"]
    with unchanged(client):
        error = error_of(client, "SESSION.OPEN", "{c}", "OWNER", "bridge")
    assert (
        error
        == "QUOTA the session '{c}' cannot be opened: there are already 2 sessions (maximum 2, holdmq.max-sessions)"
    )
    assert client.info("holdmq")["holdmq_sessions_refused"] == before + 1
    assert sessions[0].open("bridge-2", expiry=60).present == 1
    assert sessions[0].open("bridge-2", clean=True).present == 0
    sessions[1].drop()
    assert Session(client, "{c}").open("bridge").epoch > 0


def test_a_retained_message_too_many_is_refused_and_stored_for_nobody(client: redis.Redis) -> None:
    client.config_set("holdmq.max-retained", 2)
    session = Session(client, "{s}")
    session.open("bridge", expiry=60)
    session.subscribe(("#", 1))
    for topic in ("a", "b"):
        publish(client, topic, "1", retain=True)
    with unchanged(client):
        error = error_of(client, "TOPIC.PUBLISH", "c", "1", "QOS", 1, "RETAIN")
        assert (
            error
            == "QUOTA no retained message of 'c' can be stored: there are already 2 (maximum 2, holdmq.max-retained)"
        )
        record = core.Record(topic=b"c", payload=b"1", qos=1, retain=True).encode()
        error = error_of(client, "TOPIC.MPUBLISH", "RECORD", record)
        assert error is not None
        assert error.startswith("QUOTA")
    assert publish(client, "c", "not retained") == 1
    assert publish(client, "c", "", retain=True) == 1
    assert publish(client, "a", "replaced", retain=True) == 1
    publish(client, "b", "", retain=True)
    assert publish(client, "c", "1", retain=True) == 1
    assert retained_topics(client) == [b"a", b"c"]


def test_a_will_that_would_be_retained_too_many_is_published_all_the_same(client: redis.Redis) -> None:
    client.config_set("holdmq.max-retained", 1)
    publish(client, "a", "1", retain=True)
    watcher = Session(client, "{w}")
    watcher.subscribe(("will", 1))
    dying = Session(client, "{d}")
    epoch = dying.open("bridge", will=Will(retain=True)).epoch
    dying.close(epoch, will=True)
    assert len(watcher.fetch_all()) == 1
    assert retained_topics(client) == [b"a"]
