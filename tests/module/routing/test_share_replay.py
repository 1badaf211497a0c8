"""Groups that read history: $share/<group>/<filter> with a start, members that come, go and die."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
import redis

from holdmq import core
from tests.module import history_support as history
from tests.module.sessions_support import (
    Session,
    assert_indexes_hold,
    error_of,
    names,
    publish,
    wait_for_replica,
)
from tests.support import Server, eventually

MakeServer = Callable[..., Server]

FILTER = "$share/g/a/#"
GROUP = "{$share/g/a/#}"


@pytest.fixture(autouse=True)
def store(client: redis.Redis) -> None:
    """A store."""
    history.store(client, "h", "a/#", shards=2)


def member(client: redis.Redis, name: str, options: str | int = "2@earliest") -> Session:
    """A connected session with the shared subscription."""
    session = Session(client, f"{{{name}}}")
    session.open("bridge-1", expiry=600)
    session.subscribe((FILTER, options))
    return session


def keep(client: redis.Redis, first: int, count: int, topics: int = 3) -> None:
    """Publishes numbers, each to one of so many topics."""
    for number in range(first, first + count):
        publish(client, f"a/{number % topics}", str(number))


def take(session: Session, most: int = 10_000) -> list[core.Record]:
    """Takes and acknowledges so many messages of a queue."""
    entries = session.fetch(count=most).entries
    if entries:
        session.ack(*(entry.packet_id for entry in entries))
    return [core.Record.decode(entry.value) for entry in entries]


def is_live(client: redis.Redis) -> bool:
    """The group has read everything."""
    return not client.exists(GROUP + "_replays")


def numbers_of(records: list[core.Record]) -> list[int]:
    """Their payloads."""
    return [int(record.payload) for record in records]


def test_members_share_the_past_and_then_what_is_published(client: redis.Redis) -> None:
    keep(client, 0, 100)
    first = member(client, "a")
    assert client.hgetall("{a}_subscriptions") == {FILTER.encode(): b"2"}
    second = member(client, "b", 2)
    eventually(lambda: is_live(client), what="the end of the replay")
    keep(client, 100, 10)
    shares = [numbers_of(take(session)) for session in (first, second)]
    assert sorted(shares[0] + shares[1]) == list(range(110))
    assert min(map(len, shares)) >= 5


def test_the_start_of_the_first_member_counts(client: redis.Redis) -> None:
    keep(client, 0, 5)
    first = member(client, "a", "2@now")
    second = member(client, "b", "2@earliest")
    assert is_live(client)
    keep(client, 5, 4)
    assert sorted(numbers_of(take(first)) + numbers_of(take(second))) == [5, 6, 7, 8]


def test_what_is_published_meanwhile_comes_after_the_past(client: redis.Redis) -> None:
    keep(client, 0, 1500, topics=1)
    first = member(client, "a")
    keep(client, 1500, 500, topics=1)
    got: list[int] = []
    while len(got) < 2000:
        eventually(lambda: first.info()["messages"] > 0, what="more messages")
        assert first.info()["messages"] <= 1000
        got += numbers_of(take(first))
    assert got == list(range(2000))
    eventually(lambda: is_live(client))
    assert publish(client, "a/0", "2000") == 1


def test_a_group_without_connected_members_waits(client: redis.Redis) -> None:
    keep(client, 0, 2500)
    first = member(client, "a")
    eventually(lambda: first.info()["messages"] == 1000, what="a full member")
    first.close(int(first.info()["epoch"]))
    place = client.hgetall(GROUP + "_replays")
    assert publish(client, "a/0", "2500") == 0
    client.execute_command("DEBUG", "RELOAD")
    assert client.hgetall(GROUP + "_replays") == place
    second = member(client, "b", 2)
    got: list[int] = []
    while len(got) < 2501:
        eventually(lambda: second.info()["messages"] > 0, what="more messages")
        got += numbers_of(take(second))
    assert sorted(got) == list(range(2501))


def test_with_its_last_subscription_the_place_ends(client: redis.Redis) -> None:
    keep(client, 0, 1500)
    first, second = member(client, "a"), member(client, "b", 2)
    first.unsubscribe(FILTER)
    assert client.exists(GROUP + "_replays")
    second.drop()
    assert names(client, "*share*") == []
    third = member(client, "c")
    eventually(lambda: third.info()["messages"] == 1000, what="a replay from the beginning")


def test_a_position_that_others_changed_does_not_move_and_is_logged(client: redis.Redis, server: Server) -> None:
    keep(client, 0, 1500)
    session = member(client, "a")
    eventually(lambda: session.info()["messages"] == 1000, what="a full member")
    client.hset(GROUP + "_replays", FILTER, "nonsense")
    take(session)
    eventually(lambda: f"the replay of '{FILTER}' is stuck" in server.log_text(), what="a line of the log")
    assert client.hgetall(GROUP + "_replays") == {FILTER.encode(): b"nonsense"}


def drained(session: Session, count: int) -> list[int]:
    """So many numbers, in the order in which the group reads them on."""
    got: list[int] = []
    while len(got) < count:
        eventually(lambda: session.info()["messages"] > 0, what="more messages")
        got += numbers_of(take(session))
    return got


@pytest.mark.parametrize("with_store", [False, True])
def test_a_group_continues_from_a_place_in_either_form(client: redis.Redis, with_store: bool) -> None:
    """As an earlier release kept it, without its store, or as a reader of history has it."""
    keep(client, 0, 1500)
    session = member(client, "a")
    eventually(lambda: session.info()["messages"] == 1000, what="a full member")
    held = client.hget(GROUP + "_replays", FILTER)
    assert isinstance(held, bytes)
    kind, name, place = held.decode().split(" ")
    of = core.Cursor.decode(history.replay(client, "a/#", count=1).cursor.split(b",")[0])
    assert of.store == name.encode()
    cursors = [core.Cursor.decode(one) for one in place.split(",")]
    if with_store:
        cursors = [one._replace(store=of.store, store_id=of.store_id) for one in cursors]
    moved = [one.encode().decode() for one in cursors]
    assert all(one.startswith("h2-" if with_store else "h1-") for one in moved)
    client.hset(GROUP + "_replays", FILTER, f"{kind} {name} {','.join(moved)}")
    got = drained(session, 1500)
    assert sorted(got) == list(range(1500))
    assert all([n for n in got if n % 3 == topic] == list(range(topic, 1500, 3)) for topic in range(3))
    eventually(lambda: is_live(client), what="a group that has read everything")


def test_a_group_whose_store_is_gone_is_live_and_stays_so_in_a_new_one(client: redis.Redis) -> None:
    keep(client, 0, 1500)
    session = member(client, "a")
    eventually(lambda: session.info()["messages"] == 1000, what="a full member")
    client.execute_command("HISTORY.UNSTORE", "h")
    assert len(take(session)) == 1000
    eventually(lambda: is_live(client), what="a group that reads no more")
    create = ("HISTORY.STORE", "h", "FILTER", "a/#", "SHARDS", 2)
    eventually(lambda: error_of(client, *create) is None, what="the store is created again")
    keep(client, 2000, 10)
    assert sorted(drained(session, 10)) == list(range(2000, 2010))


def test_messages_of_qos_0_are_paced_and_all_heard(client: redis.Redis, server: Server) -> None:
    for number in range(450):
        publish(client, "a/0", str(number), qos=0)
    with server.client().pubsub() as listener:
        listener.subscribe("{a}_inbox")
        assert listener.get_message(timeout=5)
        member(client, "a")
        got: list[int] = []
        while len(got) < 450:
            message = listener.get_message(timeout=5)
            assert message is not None
            if message["type"] == "message":
                record = core.Delivery.decode(message["data"]).record
                if record:
                    got.append(int(core.Record.decode(record).payload))
    assert got == list(range(450))


class Members:
    """Three members that come, go and die, and what they took.

    Args:
        client: where.
        chance: decides.
    """

    def __init__(self, client: redis.Redis, chance: random.Random) -> None:
        self._chance = chance
        self.sessions = {name: member(client, name) for name in "abc"}
        self.received: Counter[int] = Counter()
        self.orders: dict[tuple[str, int, bytes], list[int]] = defaultdict(list)
        self.given_back: set[int] = set()  # these may come to others behind later ones
        self._lives = dict.fromkeys(self.sessions, 0)

    def step(self) -> None:
        """One of them goes, comes, or takes something."""
        name = self._chance.choice("abc")
        session = self.sessions[name]
        connected = session.info()["connected"]
        match self._chance.randrange(4):
            case 0 if connected:
                queued = [core.Record.decode(entry.value) for entry in session.fetch_all()]
                self.given_back.update(numbers_of(queued))
                session.close(int(session.info()["epoch"]))
            case 1:  # also while the former connection stands: a takeover
                self._lives[name] += 1
                session.open("bridge-2", expiry=600)
                session.subscribe((FILTER, 2))
            case _ if connected:
                self.take(name, self._chance.randint(1, 5))

    def take(self, name: str, most: int = 10_000) -> None:
        """It takes some of its messages."""
        for record in take(self.sessions[name], most):
            number = int(record.payload)
            self.received[number] += 1
            self.orders[name, self._lives[name], record.topic].append(number)

    def take_all(self, count: int) -> None:
        """All are there, and take everything."""
        for name, session in self.sessions.items():
            self._lives[name] += 1
            session.open("bridge-3", expiry=600)
        while len(self.received) < count:
            eventually(
                lambda: any(session.info()["messages"] for session in self.sessions.values()), what="more messages"
            )
            for name in self.sessions:
                self._lives[name] += 1
                self.take(name)


@pytest.mark.parametrize("seed", range(3))
def test_members_that_come_and_go_lose_nothing_and_first_get_each_topic_in_its_order(
    client: redis.Redis, seed: int
) -> None:
    keep(client, 0, 600)
    members = Members(client, random.Random(seed))
    # Who subscribed first may have got most of it.
    eventually(lambda: sum(session.info()["messages"] for session in members.sessions.values()) == 600, what="the past")
    for turn in range(150):
        keep(client, 600 + turn, 1)
        members.step()
    members.take_all(750)
    assert members.received == Counter(range(750))
    for order in members.orders.values():
        in_order = [number for number in order if number not in members.given_back]
        assert in_order == sorted(in_order)
    assert members.given_back


def test_what_a_member_that_dies_had_not_acknowledged_goes_to_another(client: redis.Redis) -> None:
    keep(client, 0, 90)
    dying, other = Session(client, "{a}"), member(client, "b")
    dying.open("bridge-1", expiry=0, lease=600)
    dying.subscribe((FILTER, "2@earliest"))
    keep(client, 90, 30)
    eventually(lambda: is_live(client) and dying.info()["messages"] > 8, what="a part for each")
    acknowledged = numbers_of(take(dying, 5))
    leased = set(numbers_of([core.Record.decode(entry.value) for entry in dying.fetch_all()]))
    dying.open("bridge-1", expiry=0, lease=1)  # and nobody renews it
    came: list[core.Record] = []

    def all_came() -> bool:
        came.extend(take(other))
        return len(came) >= 120 - len(acknowledged)

    eventually(all_came, what="what the dead member had")
    assert sorted(acknowledged + numbers_of(came)) == list(range(120))
    assert len(leased) > 3
    for topic in {record.topic for record in came}:
        own = [number for number in numbers_of([r for r in came if r.topic == topic]) if number not in leased]
        assert own == sorted(own)


def test_a_promoted_replica_continues_where_the_group_was(fresh_server: MakeServer) -> None:
    primary = fresh_server()
    client = primary.client()
    history.store(client, "h", "a/#", shards=2)
    keep(client, 0, 2500)
    replica = fresh_server(replica_of=primary)
    member(client, "a")
    eventually(lambda: Session(client, "{a}").info()["messages"] == 1000, what="a full member")
    wait_for_replica(client, replica.client())
    primary.kill()
    follower = replica.client()
    follower.execute_command("REPLICAOF", "NO", "ONE")
    session = Session(follower, "{a}")
    session.open("bridge-2", expiry=600)
    got: list[int] = []
    while len(got) < 2500:
        eventually(lambda: session.info()["messages"] > 0, what="more messages")
        got += numbers_of(take(session))
    assert sorted(got) == list(range(2500))
    assert_indexes_hold(follower)
