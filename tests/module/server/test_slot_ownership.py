"""A slot that a node lost to another is not served there from the moment in which its server knows.

No command tells a node that another one has taken a slot: it hears of it on the cluster bus.  The server refuses keys
of that slot at once, and so do commands whose keys the server does not see.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.crc import key_slot

from holdmq import core
from tests.module.cluster_support import node_id
from tests.support import Cluster, eventually
from tests.support.server import SLOTS

EVERY = (1, 0, SLOTS - 1)
WAIT_S = 20.0
Publish = Callable[[redis.Redis, str, int], list[list[object]]]


def one_topic(client: redis.Redis, topic: str, slot: int) -> list[list[object]]:
    """Publish a retained message for its slot alone; returns what was not served."""
    unserved: list[list[object]]
    _reached, unserved = client.execute_command("TOPIC.PUBLISH", topic, "m", "RETAIN", "SLOTS", 1, slot, slot)
    return unserved


def every_slot(client: redis.Redis, topic: str, slot: int) -> list[list[object]]:
    """The same for all slots; returns what was not served and has the slot in it."""
    _reached, unserved = client.execute_command("TOPIC.PUBLISH", topic, "m", "RETAIN", "SLOTS", *EVERY)
    return [[slot, slot, address] for first, last, address in unserved if first <= slot <= last]


def many_messages(client: redis.Redis, topic: str, slot: int) -> list[list[object]]:
    """The same with TOPIC.MPUBLISH."""
    unserved: list[list[object]]
    record = core.Record(topic=topic.encode(), payload=b"m", qos=1, retain=True).encode()
    _counts, unserved = client.execute_command("TOPIC.MPUBLISH", "SLOTS", 1, slot, slot, "RECORD", record)
    return unserved


def in_a_pipeline(client: redis.Redis, topic: str, slot: int) -> list[list[object]]:
    """The same with TOPIC.PIPELINE."""
    words = ["TOPIC.PUBLISH", topic, "m", "RETAIN", "SLOTS", "1", str(slot), str(slot)]
    text = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    [[_reached, unserved]] = client.execute_command("TOPIC.PIPELINE", text)
    return list(unserved)


def retained_topics(client: redis.Redis, topic: str, slot: int) -> list[list[object]]:
    """Ask for the retained message instead."""
    unserved: list[list[object]]
    _topics, unserved = client.execute_command("TOPIC.RETAINED", topic, "SLOTS", 1, slot, slot)
    return unserved


class Taken:
    """Two nodes and a topic in a slot of the first, which the second takes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source, self.target = cluster.nodes[:2]
        self.topic = next(name for name in (f"t{n}" for n in itertools.count()) if cluster.node_of(name) is self.source)
        self.slot = key_slot(self.topic.encode())
        self.client = self.source.client()
        target = self.target.client()
        target.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))

    def take(self) -> None:
        """Wait until the server of the first node has heard; no command tells it."""
        self.target.client().execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))
        eventually(self._is_refused, WAIT_S, "a server that refuses keys of the slot")

    def _is_refused(self) -> bool:
        try:
            self.client.execute_command("EXISTS", f"{{{self.topic}}}")
        except redis.exceptions.MovedError:
            return True
        return False


@pytest.fixture
def taken(fresh_cluster: Callable[..., Cluster]) -> Iterator[Taken]:
    """Slots of three nodes; afterwards no key is left where the slot was."""
    found = Taken(fresh_cluster(3))
    yield found
    assert found.client.execute_command("DBSIZE") == 0


@pytest.mark.parametrize("publish", [one_topic, every_slot, many_messages, in_a_pipeline, retained_topics])
def test_a_slot_that_another_node_took_is_not_served(taken: Taken, publish: Publish) -> None:
    other = f"{taken.topic}/other"  # the node looks at its slots without a key in the slot
    taken.client.execute_command("TOPIC.PUBLISH", other, "m", "SLOTS", 1, taken.slot, taken.slot)
    taken.take()
    assert publish(taken.client, taken.topic, taken.slot) == [[taken.slot, taken.slot, b""]]


def test_a_retained_message_is_not_written_where_its_slot_was(taken: Taken) -> None:
    taken.client.execute_command("TOPIC.PUBLISH", f"{taken.topic}/other", "m", "SLOTS", 1, taken.slot, taken.slot)
    taken.take()
    with pytest.raises(redis.ResponseError, match=f"slot {taken.slot}"):
        taken.client.execute_command("TOPIC.PUBLISH", taken.topic, "m", "RETAIN")


def test_a_publisher_whose_session_has_gone_is_sent_to_its_node(taken: Taken) -> None:
    taken.client.execute_command("TOPIC.PUBLISH", f"{taken.topic}/other", "m", "SLOTS", 1, taken.slot, taken.slot)
    taken.take()
    with pytest.raises(redis.exceptions.MovedError) as refused:
        taken.client.execute_command("TOPIC.PUBLISH", "x", "m", "FROM", taken.topic, "EPOCH", 1)
    assert refused.value.slot_id == taken.slot
