"""TOPIC.MATCH: which subscriptions a topic matches."""

import random
from typing import TYPE_CHECKING, Any

import pytest
import redis

from holdmq import HoldMQ, commands
from tests.module.sessions_support import error_of, subscribe_in_vain
from tests.support import Server

if TYPE_CHECKING:
    from holdmq.replies import MatchRow


def match(client: redis.Redis, topic: str, *words: object) -> Any:
    return client.execute_command("TOPIC.MATCH", topic, *words)


def subscribe(client: redis.Redis, session: str, *filters: str, qos: int = 1) -> None:
    for topic_filter in filters:
        client.execute_command("SESSION.SUBSCRIBE", session, topic_filter, qos)


def test_sessions_and_groups_with_a_matching_filter_are_listed(client: redis.Redis) -> None:
    subscribe(client, "{a}", "plant/+/state", "plant/#", "other")
    subscribe(client, "{b}", "plant/1/state", qos=0)
    subscribe(client, "{c}", "$share/g/plant/#", qos=2)
    subscribe(client, "{d}", "$share/g/plant/#", "$share/h/other")
    cursor, rows, complete = match(client, "plant/1/state")
    assert (cursor, complete) == (b"0", 1)
    group = b"$share/g/plant/#"
    assert sorted(rows) == [
        [group, b"{$share/g/plant/#}", group, None, 2],
        [b"plant/#", b"{a}", b"a", 1, None],
        [b"plant/+/state", b"{a}", b"a", 1, None],
        [b"plant/1/state", b"{b}", b"b", 0, None],
    ]


def test_it_is_what_a_publish_delivers_to(client: redis.Redis) -> None:
    subscribe(client, "{a}", "a/+", "#")
    subscribe(client, "{b}", "$SYS/#", "+/b")
    subscribe(client, "{c}", "a/b/#")
    for topic, listed in (("a/b", {b"a", b"b", b"c"}), ("$SYS/x", {b"b"}), ("a", {b"a"}), ("/", {b"a"})):
        assert {row[2] for row in match(client, topic)[1]} == listed
        assert client.execute_command("TOPIC.PUBLISH", topic, "m", "QOS", 1) == len(listed)


def test_it_changes_nothing_and_lists_nothing_that_has_gone(client: redis.Redis) -> None:
    subscribe(client, "{a}", "t")
    subscribe(client, "{b}", "t")
    before = client.keys("*")
    match(client, "t")
    assert sorted(client.keys("*")) == sorted(before)
    client.delete("{a}_subscriptions")
    client.execute_command("SESSION.UNSUBSCRIBE", "{b}", "t")
    assert match(client, "t") == [b"0", [], 1]


def test_pages_list_each_subscription_once(client: redis.Redis) -> None:
    for number in range(57):
        subscribe(client, f"{{c{number}}}", "t/#", "t/1")
    hold = HoldMQ(client)
    found: list[MatchRow] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = hold.execute(commands.topic_match("t/1", cursor=cursor, count=10))
        assert len(page.matches) <= 10
        found += page.matches
        cursor = page.cursor
        assert page.complete == (cursor is None)
    assert len(found) == len(set(found)) == 114
    assert {row.client_id for row in found} == {f"c{number}" for number in range(57)}


def test_a_page_of_long_filters_ends_early(client: redis.Redis) -> None:
    topic = "t" * 60_000
    for number in range(50):
        subscribe(client, f"{{c{number}}}", topic)
    cursor, found, longest = b"0", list[bytes](), 0
    while True:
        cursor, rows, complete = match(client, topic, "CURSOR", cursor, "COUNT", 1000)
        found += [row[2] for row in rows]
        longest = max(longest, sum(len(row[0]) for row in rows))
        assert complete == (cursor == b"0")
        if cursor == b"0":
            break
    assert sorted(found) == sorted(f"c{number}".encode() for number in range(50))
    assert longest <= 262_144 + 60_000


def test_what_is_beyond_the_bound_is_said_to_be_missing(client: redis.Redis) -> None:
    script = (
        "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do redis.call('SESSION.SUBSCRIBE', '{c' .. n .. '}', 't', 0) end"
    )
    for start in range(0, 100_001, 10_000):
        client.eval(script, 0, start, min(start + 9_999, 100_000))
    cursor, rows, complete = match(client, "t", "CURSOR", 99_000, "COUNT", 1000)
    assert (cursor, len(rows), complete) == (b"0", 1000, 0)
    client.config_resetstat()
    cursor, rows, complete = match(client, "t", "CURSOR", 98_999, "COUNT", 1000)
    assert (cursor, len(rows), complete) == (b"99999", 1000, 0)
    assert client.info("commandstats")["cmdstat_TOPIC.MATCH"]["usec"] < 100_000  # 3 ms on an idle machine


def us_of_match(client: redis.Redis, topic: str, cursor: int) -> float:
    took = []
    for _ in range(10):
        client.config_resetstat()
        match(client, topic, "CURSOR", cursor, "COUNT", 1000)
        took.append(float(client.info("commandstats")["cmdstat_TOPIC.MATCH"]["usec"]))
    return min(took)


def test_however_many_different_filters_match_a_page_takes_a_bounded_time(client: redis.Redis) -> None:
    levels = 17
    topic = "/".join("a" * levels)
    names = ["/".join("+" if bits >> at & 1 else "a" for at in range(levels)) for bits in range(100_000)]
    pipe = client.pipeline(transaction=False)

    def add(first: int, last: int) -> None:
        for start in range(first, last, 1000):
            words = [word for name in names[start : start + 1000] for word in (name, 0)]
            pipe.execute_command("SESSION.SUBSCRIBE", f"{{c{start}}}", *words)
        pipe.execute()

    add(0, 10_000)
    few = us_of_match(client, topic, 9_000)
    add(10_000, 100_000)
    assert us_of_match(client, topic, 99_000) < 4 * few
    cursor, found, complete = b"0", list[bytes](), 0
    while True:
        cursor, rows, complete = match(client, topic, "CURSOR", cursor, "COUNT", 1000)
        found += [row[0] for row in rows]
        if cursor == b"0":
            break
    assert complete == 0  # others match: it says so
    assert 5_000 < len(found) == len(set(found)) < 100_000


def test_however_many_levels_are_searched_in_vain_a_page_takes_a_bounded_time(client: redis.Redis) -> None:
    chosen = random.Random(1)

    topic = "/".join("a" * 127)
    subscribe_in_vain(client, chosen, 400)
    few = us_of_match(client, topic, 0)
    subscribe_in_vain(client, chosen, 7600)
    assert us_of_match(client, topic, 0) < 4 * few
    assert match(client, topic) == [b"0", [], 0]


def test_a_user_sees_the_sessions_that_it_may_read(client: redis.Redis, server: Server) -> None:
    subscribe(client, "{mine:1}", "t")
    subscribe(client, "{other}", "t")
    client.acl_setuser(
        "guest", enabled=True, nopass=True, commands=["+@all"], keys=["mine:*", "{mine:*"], channels=["*"]
    )
    with redis.Redis(port=server.port, username="guest", password="x") as guest:  # noqa: S106
        assert [row[1] for row in match(guest, "t")[1]] == [b"{mine:1}"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a/+",), "INVALIDTOPIC the topic"),
        (("",), "INVALIDTOPIC the topic"),
        (("a", "CURSOR", "x"), "CURSOR is 'x'; expected a whole number from 0 to 100000"),
        (("a", "CURSOR", 100_001), "CURSOR is '100001'"),
        (("a", "COUNT", 0), "COUNT is '0'; expected a whole number from 1 to 1000"),
        (("a", "COUNT", 1001), "COUNT is '1001'"),
        (("a", "MORE"), "unexpected argument 'MORE'"),
        (("a", "COUNT"), "COUNT is missing"),
    ],
)
def test_what_is_wrong_is_named(client: redis.Redis, words: tuple[str | int, ...], message: str) -> None:
    assert message in (error_of(client, "TOPIC.MATCH", *words) or "")
