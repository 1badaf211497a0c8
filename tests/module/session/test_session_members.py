"""Member sessions: those of a client in the slots of its groups, and the notes of them in the client's own session."""

from typing import Any

import pytest
import redis

from tests.support import Server

MEMBER, OTHER = "c1:{$share/g/t}", "c2:{$share/g/t}"
SHARE = "$share/g/t"


def open_member(client: Any, key: str, claim: int, *more: str | int) -> int:
    epoch, _present = client.execute_command("SESSION.OPEN", key, "OWNER", "o", "EXPIRY", 60, "CLAIM", claim, *more)
    return int(epoch)


def got(client: Any, key: str) -> list[bytes]:
    return [entry[3] for entry in client.execute_command("SESSION.FETCH", key)[0]]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (MEMBER, []),
        ("{$share/g/t}", ["CLAIM", 1]),
        (":{$share/g/t}", ["CLAIM", 1]),
        ("prefix{$share/g/t}", ["CLAIM", 1]),
        ("{c1}", ["CLAIM", 1]),
        (MEMBER, ["CLAIM", 0]),
        (MEMBER, ["CLAIM", "x"]),
    ],
)
def test_claims_are_of_members_and_members_have_claims(server: Server, key: str, words: list[Any]) -> None:
    client = server.client()
    with pytest.raises(redis.ResponseError, match="CLAIM"):
        client.execute_command("SESSION.OPEN", key, "OWNER", "o", *words)
    assert client.dbsize() == 0


def test_an_older_claim_is_fenced_and_the_same_or_a_later_one_takes_over(server: Server) -> None:
    client = server.client()
    first = open_member(client, MEMBER, 7)
    second = open_member(client, MEMBER, 7)
    assert second > first
    with pytest.raises(redis.ResponseError, match=r"^FENCED CLAIM is 6"):
        open_member(client, MEMBER, 6)
    client.execute_command("SESSION.CLOSE", MEMBER, "EPOCH", second)
    with pytest.raises(redis.ResponseError, match=r"^FENCED CLAIM is 6"):
        open_member(client, MEMBER, 6)
    third = open_member(client, MEMBER, 8)
    with pytest.raises(redis.ResponseError, match="FENCED"):
        client.execute_command("SESSION.CLOSE", MEMBER, "EPOCH", second)
    client.execute_command("SESSION.CLOSE", MEMBER, "EPOCH", third)


def test_a_clean_open_keeps_the_claim(server: Server) -> None:
    client = server.client()
    open_member(client, MEMBER, 7)
    open_member(client, MEMBER, 8, "CLEAN")
    with pytest.raises(redis.ResponseError, match=r"^FENCED CLAIM is 7"):
        open_member(client, MEMBER, 7)


def test_members_share_the_messages_and_give_back_what_their_clients_did_not_get(server: Server) -> None:
    client = server.client()
    epochs = {key: open_member(client, key, 1) for key in (MEMBER, OTHER)}
    for key, epoch in epochs.items():
        client.execute_command("SESSION.SUBSCRIBE", key, "EPOCH", epoch, SHARE, 1)
    for number in range(10):
        client.execute_command("TOPIC.PUBLISH", "t", f"{number}", "QOS", 1)
    assert [len(got(client, key)) for key in (MEMBER, OTHER)] == [5, 5]
    client.execute_command("SESSION.CLOSE", MEMBER, "EPOCH", epochs[MEMBER])
    assert len(got(client, OTHER)) == 10


def test_a_note_is_kept_and_gets_no_messages(server: Server) -> None:
    client = server.client()
    assert client.execute_command("SESSION.SUBSCRIBE", "{c1}", SHARE, "1:7&31", "t", 1) == [1, 1]
    assert client.execute_command("SESSION.SUBSCRIPTIONS", "{c1}") == {SHARE.encode(): b"1:7&31", b"t": b"1"}
    assert client.execute_command("TOPIC.GROUPS")[1] == []
    client.execute_command("TOPIC.PUBLISH", "t", "x", "QOS", 1)
    assert len(got(client, "{c1}")) == 1  # by its filter t
    server.check_indexes()
    assert client.execute_command("SESSION.SUBSCRIBE", "{c1}", SHARE, "2&0") == [0]
    assert client.execute_command("SESSION.SUBSCRIPTIONS", "{c1}")[SHARE.encode()] == b"2&0"
    assert client.execute_command("SESSION.UNSUBSCRIBE", "{c1}", SHARE) == [1]


def test_a_note_becomes_a_subscription_and_a_subscription_a_note(server: Server) -> None:
    client = server.client()
    client.execute_command("SESSION.SUBSCRIBE", "{c1}", SHARE, "1&3")
    client.execute_command("SESSION.SUBSCRIBE", "{c1}", SHARE, 1)
    assert [group[:2] for group in client.execute_command("TOPIC.GROUPS")[1]] == [[SHARE.encode(), 1]]
    client.execute_command("SESSION.SUBSCRIBE", "{c1}", SHARE, "1&3")
    assert client.execute_command("TOPIC.GROUPS")[1] == []
    server.check_indexes()


@pytest.mark.parametrize(
    ("topic_filter", "options"),
    [("t", "1&3"), (SHARE, "1&32"), (SHARE, "1&"), (SHARE, "1&x"), (SHARE, "1&03"), (SHARE, "3&1"), (SHARE, "1&1@now")],
)
def test_a_wrong_note_is_refused(server: Server, topic_filter: str, options: str) -> None:
    client = server.client()
    with pytest.raises(redis.ResponseError, match=r"options is .*expected"):
        client.execute_command("SESSION.SUBSCRIBE", "{c1}", topic_filter, options)
    assert client.dbsize() == 0


def test_members_are_neither_listed_nor_announced(server: Server) -> None:
    client = server.client()
    client.config_set("holdmq.presence", "yes")
    client.execute_command("SESSION.SUBSCRIBE", "{watcher}", "$SYS/clients/#", 1)
    epoch = open_member(client, MEMBER, 1)
    client.execute_command("SESSION.CLOSE", MEMBER, "EPOCH", epoch)
    open_member(client, MEMBER, 1)
    assert got(client, "{watcher}") == []
    client.execute_command("SESSION.OPEN", "{c1}", "OWNER", "o", "EXPIRY", 60)
    assert len(got(client, "{watcher}")) == 1
    listed = client.execute_command("SESSION.LIST")
    assert MEMBER.encode() not in str(listed).encode()


def test_a_member_is_dropped_unless_a_later_connection_has_it(server: Server) -> None:
    client = server.client()
    epoch = open_member(client, MEMBER, 7)
    client.execute_command("SESSION.SUBSCRIBE", MEMBER, "EPOCH", epoch, SHARE, 1)
    with pytest.raises(redis.ResponseError, match=r"^FENCED CLAIM is 6"):
        client.execute_command("SESSION.DROP", MEMBER, "CLAIM", 6)
    assert [group[:2] for group in client.execute_command("TOPIC.GROUPS")[1]] == [[SHARE.encode(), 1]]
    assert client.execute_command("SESSION.DROP", MEMBER, "CLAIM", 7) == 0
    assert client.execute_command("TOPIC.GROUPS")[1] == []
    assert client.execute_command("SESSION.DROP", MEMBER, "CLAIM", 7) == 0
    assert client.keys("c1*") == []


@pytest.mark.parametrize(
    "words", [("{c1}", "CLAIM", 1), (MEMBER, "CLAIM", 0), (MEMBER, "CLAIM", "x"), (MEMBER, "CLAIM")]
)
def test_a_drop_with_a_wrong_claim_is_refused(server: Server, words: tuple[Any, ...]) -> None:
    client = server.client()
    client.execute_command("SESSION.ADD", "{c1}", "x")
    with pytest.raises(redis.ResponseError, match="CLAIM"):
        client.execute_command("SESSION.DROP", *words)
    assert client.execute_command("SESSION.INFO", "{c1}")[b"messages"] == 1
