"""A store learns from what it holds and what its readers ask for: it proposes a pattern set, and may switch to it."""

import random
from typing import Any

import pytest
import redis

from holdmq import core
from tests.module.history_support import facts, named_map, read_range, replay, replay_all, store
from tests.module.sessions_support import error_of, publish, unchanged
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("posting_lists_hold")

FIRST = b"holdmq-patterns 1 levels=8\n#\n"


def propose(client: redis.Redis, name: str, *words: Any) -> dict[str, Any]:
    """HISTORY.PATTERNS PROPOSE."""
    return named_map(client.execute_command("HISTORY.PATTERNS", "PROPOSE", name, *words))


def fill(client: redis.Redis, count: int, devices: int = 400) -> None:
    """Publishes so many messages of devices."""
    chance = random.Random(count)
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            suffix = chance.choice(("temperature", "pressure"))
            pipe.execute_command("TOPIC.PUBLISH", f"devices/{chance.randrange(devices)}/{suffix}", number)
        pipe.execute()


def counter(client: redis.Redis, name: str) -> int:
    return int(client.info("holdmq")[f"holdmq_history_{name}"])


# --- Proposing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_proposed_fits_the_topics_and_can_be_committed(client: redis.Redis, shards: int) -> None:
    store(client, "s", "devices/#", shards=shards)
    fill(client, 3000)
    with unchanged(client):
        proposal = propose(client, "s")
    assert proposal["better"] == 1
    assert proposal["messages"] == 3000
    assert float(proposal["cost"]) < 0.9 * float(proposal["present_cost"])
    text = proposal["text"]
    assert proposal["patterns"] == len(text.splitlines()) - 1
    patterns = core.PatternSet(text)
    places = {
        patterns.find(f"devices/{number}/{suffix}").pattern
        for number in range(400)
        for suffix in ("temperature", "pressure")
    }
    assert len(places) == 2
    assert client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, text) == b"OK"
    assert client.execute_command("HISTORY.PATTERNS", "COMMIT", "s", 2) == b"OK"
    again = propose(client, "s")
    assert (again["better"], again["text"]) == (0, text)
    assert again["cost"] == again["present_cost"]


def test_the_filters_of_readers_decide_what_is_kept_apart(client: redis.Redis) -> None:
    store(client, "s", "#")
    for number in range(600):
        publish(client, f"r/{number % 30}/temperature", str(number))
    for _ in range(5):
        replay(client, "r/+/temperature", count=1)
    across = propose(client, "s", "MARGIN", 0)
    assert len(across["text"].splitlines()) - 1 <= 3
    for number in range(30):
        for _ in range(20):
            replay(client, f"r/{number}/temperature", count=1)
            read_range(client, "s", 0, 1, 1, filter=f"r/{number}/+")
    apart = propose(client, "s", "MARGIN", 0)
    assert len(apart["text"].splitlines()) > len(across["text"].splitlines())


def test_values_that_a_sample_cannot_show_get_their_bits(client: redis.Redis) -> None:
    store(client, "s", "devices/#")
    with client.pipeline(transaction=False) as pipe:
        for number in range(40_000):
            pipe.execute_command("HISTORY.APPEND", "s", f"devices/{number}/state", "x")
        pipe.execute()
    proposal = propose(client, "s")
    assert proposal["messages"] == 8192
    patterns = core.PatternSet(proposal["text"])
    place = patterns.find("devices/7/state")
    (bits,) = patterns[place.pattern].bits
    assert 17 <= bits <= 20, "four hashes for each of 40,000 devices, though only 8,192 were seen"


def test_a_store_without_messages_has_nothing_better(client: redis.Redis) -> None:
    store(client, "s", "devices/#", shards=2)
    proposal = propose(client, "s")
    assert (proposal["better"], proposal["text"], proposal["messages"], proposal["patterns"]) == (0, FIRST, 0, 1)


def test_a_margin_decides_what_is_better(client: redis.Redis) -> None:
    store(client, "s", "devices/#")
    fill(client, 1000)
    assert propose(client, "s", "MARGIN", 10)["better"] == 1
    assert propose(client, "s", "MARGIN", 100)["better"] == 0
    for words in (("MARGIN", 101), ("MARGIN",), ("x",)):
        assert error_of(client, "HISTORY.PATTERNS", "PROPOSE", "s", *words)


# --- By itself --------------------------------------------------------------------------------------------------------


def test_a_store_that_learns_switches_once_and_loses_nothing(client: redis.Redis) -> None:
    store(client, "s", "devices/#", shards=2)
    fill(client, 2000)
    switched, learned = counter(client, "switched"), counter(client, "learned")
    store(client, "s", "devices/#", learn=1)
    eventually(lambda: facts(client, "s")["generation"] == 2)
    fill(client, 500)
    eventually(lambda: counter(client, "learned") >= learned + 2)
    assert counter(client, "switched") == switched + 1, "what is no better is not switched to"
    assert len(replay_all(client, "devices/#")) == 2500
    told = facts(client, "s")
    assert told["learn"] == 1
    assert [one["generation"] for one in told["shard"]] == [2, 2]
    assert not client.keys("*_prepared")


def test_a_store_does_not_switch_while_somebody_has_prepared(client: redis.Redis) -> None:
    store(client, "s", "devices/#", learn=1)
    client.execute_command("HISTORY.PATTERNS", "PREPARE", "s", 2, FIRST)
    fill(client, 2000)
    learned = counter(client, "learned")
    eventually(lambda: counter(client, "learned") >= learned + 2)
    assert facts(client, "s")["generation"] == 1
    client.execute_command("HISTORY.PATTERNS", "ABORT", "s")
    eventually(lambda: facts(client, "s")["generation"] == 2)


def test_a_store_does_not_learn_unless_requested(client: redis.Redis) -> None:
    store(client, "s", "devices/#", learn=1)
    store(client, "s", "devices/#", learn=0)
    (told,) = [named_map(one) for one in client.execute_command("HISTORY.STORES")]
    assert told["learn"] == 0
    assert client.hget("{s}_history_store", "learn") is None
    assert "LEARN is '-1'" in (error_of(client, "HISTORY.STORE", "s", "FILTER", "a", "LEARN", -1) or "")
