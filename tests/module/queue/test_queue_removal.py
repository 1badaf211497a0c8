"""What SESSION.ACK takes out of a queue.

A replica without the module takes out the same, by as few commands as tell it.
"""

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import redis

from tests.module.sessions_support import Session, digest
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

MESSAGES = b"{c}_messages"
TOLD = ("zrem", "zremrangebyscore", "unlink", "del")


class Followed(NamedTuple):
    """A session, and a replica of its server that has no module."""

    session: Session
    replica: redis.Redis

    @property
    def client(self) -> redis.Redis:
        """Of the primary."""
        return self.session.client

    def settle(self) -> None:
        """The replica has all that was done, and holds the same."""
        leader, follower = self.client, self.replica
        sent = leader.info("replication")["master_repl_offset"]
        eventually(lambda: follower.info("replication")["slave_repl_offset"] >= sent, 20, "a replica that caught up")
        assert digest(follower) == digest(leader)

    def acknowledge(self, *packet_ids: str | int) -> tuple[int, dict[str, int]]:
        """SESSION.ACK: how many there were, and how often the replica was told what."""
        self.settle()
        self.replica.config_resetstat()
        removed = self.client.execute_command("SESSION.ACK", "{c}", *packet_ids)
        self.settle()
        told = self.replica.info("commandstats")
        return removed, {name: told[f"cmdstat_{name}"]["calls"] for name in TOLD if f"cmdstat_{name}" in told}


@pytest.fixture
def followed(fresh_server: MakeServer) -> Followed:
    """An empty session."""
    primary: Server = fresh_server()
    replica: Server = fresh_server(replica_of=primary, module=False)
    follower = replica.client()
    eventually(lambda: follower.info("replication")["master_link_status"] == "up", 20, "a replica that is connected")
    return Followed(Session(primary.client()), follower)


def test_messages_that_follow_one_another_go_as_a_range(followed: Followed) -> None:
    followed.session.add(*map(str, range(40)))
    assert followed.acknowledge("11-30") == (20, {"zremrangebyscore": 1, "unlink": 1})
    assert followed.acknowledge("1-10") == (10, {"zremrangebyscore": 1, "unlink": 1})
    assert followed.session.fetch().packet_ids == list(range(31, 41))


def test_the_last_messages_take_the_set_with_them(followed: Followed) -> None:
    for packet_ids in (["1-20"], [21], [22, 24, 23]):
        followed.session.add(*map(str, range(20 if packet_ids == ["1-20"] else len(packet_ids))))
        removed, told = followed.acknowledge(*packet_ids)
        assert (removed, told) == (20 if packet_ids == ["1-20"] else len(packet_ids), {"unlink": 1})
        assert not followed.client.exists(MESSAGES)
    assert followed.session.add("next").packet_ids == [25]
    followed.settle()


def test_more_than_a_thousand_go_with_the_set(followed: Followed) -> None:
    followed.session.add(*map(str, range(1200)))
    assert followed.acknowledge("1-1200") == (1200, {"unlink": 2})
    assert followed.client.dbsize() == followed.replica.dbsize() == 1  # the counter


def test_a_range_continues_where_identifiers_start_again(followed: Followed) -> None:
    followed.client.set("{c}_last_packet_id", 65530)
    followed.session.add(*map(str, range(12)))
    assert followed.acknowledge("65532-65535", "1-4") == (8, {"zremrangebyscore": 1, "unlink": 1})
    assert followed.session.fetch().packet_ids == [65531, 5, 6, 7]


def test_a_range_ends_before_what_was_not_acknowledged(followed: Followed) -> None:
    followed.session.add(*map(str, range(30)))
    assert followed.acknowledge("1-10", "12-20") == (19, {"zremrangebyscore": 1, "zrem": 1, "unlink": 1})
    assert followed.session.fetch().packet_ids == [11, *range(21, 31)]


def test_what_is_acknowledged_twice_or_unknown_is_in_nobodys_way(followed: Followed) -> None:
    followed.session.add(*map(str, range(30)))
    assert followed.acknowledge("5-12", "5-12", "9-14", "40-60")[0] == 10
    assert followed.session.fetch().packet_ids == [1, 2, 3, 4, *range(15, 31)]


def test_references_of_others_stay_wherever_they_stand(followed: Followed) -> None:
    session, client = followed.session, followed.client
    for score, name in itertools.product(
        ("3", "5", "5.5", "10", "10.0001", "11", "-1", "-inf"), ("{c}", "{c}_messages_", "{c}_messages_70000", "zzz")
    ):
        client.delete("{c}_last_packet_id", *client.keys("{c}_messages*"))
        session.add(*map(str, range(20)))
        client.execute_command("ZADD", MESSAGES, score, name)
        assert client.execute_command("SESSION.ACK", "{c}", "3-10") == 8
        left = client.zrange(MESSAGES, 0, -1)
        assert sorted(left) == sorted([name.encode(), *(session.message(i) for i in (1, 2, *range(11, 21)))])
        followed.settle()


def test_messages_whose_score_others_changed_are_acknowledged_all_the_same(followed: Followed) -> None:
    session, client = followed.session, followed.client
    for score in ("2", "4", "5", "9", "10", "10.5", "30", "0.25", "1e300"):
        client.delete("{c}_last_packet_id", *client.keys("{c}_messages*"))
        session.add(*map(str, range(20)))
        client.execute_command("ZADD", MESSAGES, score, session.message(5))
        assert client.execute_command("SESSION.ACK", "{c}", "3-10") == 8
        assert client.zrange(MESSAGES, 0, -1) == [session.message(i) for i in (1, 2, *range(11, 21))]
        followed.settle()


def test_a_key_of_another_type_stays_and_loses_its_reference(followed: Followed) -> None:
    followed.session.add(*map(str, range(10)))
    followed.client.delete(followed.session.message(4), followed.session.message(6))
    followed.client.rpush(followed.session.message(4), "somebody else's")
    assert followed.acknowledge("2-8") == (7, {"zremrangebyscore": 1, "unlink": 1})
    assert followed.client.lrange(followed.session.message(4), 0, -1) == [b"somebody else's"]
    assert followed.acknowledge("1-10") == (3, {"unlink": 1})


def test_any_removal_is_the_same_on_a_replica(followed: Followed) -> None:
    chance = random.Random(4)
    for number in range(100):
        first = followed.session.add(*map(str, range(chance.randrange(1, 40)))).packet_ids[0]
        for _ in range(chance.randrange(3)):
            at = first + chance.randrange(-5, 40)
            name = chance.choice((followed.session.message(max(1, at)), b"other-%d" % chance.randrange(5)))
            followed.client.execute_command("ZADD", MESSAGES, "XX" if name.startswith(b"{") else "CH", at, name)
        words = []
        for _ in range(chance.randrange(1, 4)):
            begin = max(1, first + chance.randrange(-20, 30))
            words.append(f"{begin}-{begin + chance.randrange(30)}")
        before = set(followed.client.zrange(MESSAGES, 0, -1))
        asked = {
            followed.session.message(packet_id)
            for low, high in (word.split("-") for word in words)
            for packet_id in range(int(low), int(high) + 1)
        }
        assert followed.client.execute_command("SESSION.ACK", "{c}", *words) == len(before & asked)
        assert set(followed.client.zrange(MESSAGES, 0, -1)) == before - asked
        if number % 10 == 0:
            followed.settle()
    followed.settle()
