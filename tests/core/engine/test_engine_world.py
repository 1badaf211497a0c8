"""The engine in its small world: whatever happens in whatever order, nothing is lost, doubled or overtaken.

Hypothesis looks for a short sequence of steps that breaks something, and prints it; the walks are long and random, each
from the seed in its name.
"""

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.core.engine.engine_world import World
from tests.core.engine.engine_world_server import UNPIPELINED, UNWAITED

if TYPE_CHECKING:
    from collections.abc import Callable

WALKS = 40
REPLICAS = 2
STEPS = 400
CLIENTS = st.integers(0, 2)
BYTES = st.integers(1, 200)
REFUSALS = [b"", b"OOM", b"READONLY", b"BUSY", b"TRYAGAIN", *UNPIPELINED, UNWAITED]


class Machine(RuleBasedStateMachine):
    """Every step of the world is a rule."""

    WAIT_REPLICAS = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.WAIT_REPLICAS)

    @rule(who=CLIENTS)
    def connect(self, who: int) -> None:
        self.world.step_connect(self.world.clients[who])

    @rule(who=CLIENTS)
    def disconnect(self, who: int) -> None:
        self.world.step_disconnect(self.world.clients[who])

    @rule(who=CLIENTS)
    def steal(self, who: int) -> None:
        self.world.step_steal(self.world.clients[who])

    @rule(who=CLIENTS, whom=CLIENTS, qos=st.integers(0, 2))
    def publish(self, who: int, whom: int, qos: int) -> None:
        self.world.step_publish(self.world.clients[who], self.world.clients[whom], qos)

    @rule(whom=CLIENTS, qos=st.integers(0, 2), life_ms=st.sampled_from([0, 0, 150]), large=st.booleans())
    def backend(self, whom: int, qos: int, life_ms: int, large: bool) -> None:
        self.world.step_backend(self.world.clients[whom], qos, life_ms, large)

    @rule(who=CLIENTS, count=BYTES)
    def flow(self, who: int, count: int) -> None:
        self.world.step_flow(self.world.clients[who], count)

    @rule(who=CLIENTS, which=st.integers(0, 3))
    def acknowledge(self, who: int, which: int) -> None:
        self.world.step_acknowledge(self.world.clients[who], which)

    @rule(who=CLIENTS, writable=st.booleans())
    def writable(self, who: int, writable: bool) -> None:
        self.world.step_writable(self.world.clients[who], writable)

    @rule(most=st.sampled_from([0, 40, 150, 1 << 20]))
    def look(self, most: int) -> None:
        self.world.step_look(most)

    @rule(count=st.integers(1, 10))
    def execute(self, count: int) -> None:
        self.world.step_execute(count)

    @rule(count=BYTES)
    def answer(self, count: int) -> None:
        self.world.step_answer(count)

    @rule(refusal=st.sampled_from(REFUSALS))
    def refuse(self, refusal: bytes) -> None:
        self.world.step_refuse(refusal)

    @rule(headers=st.booleans(), queues=st.booleans())
    def headers(self, headers: bool, queues: bool) -> None:
        self.world.step_headers(headers, queues)

    @rule()
    def snapshot(self) -> None:
        self.world.step_snapshot()

    @rule()
    def lose(self) -> None:
        self.world.step_lose()

    @rule(older=st.booleans())
    def restore(self, older: bool) -> None:
        self.world.step_restore(older)

    @rule(ms=st.sampled_from([1, 20, 100, 1000, -5000]))
    def time(self, ms: int) -> None:
        self.world.step_time(ms)

    @rule(count=st.integers(1, 4))
    def starve(self, count: int) -> None:
        self.world.step_starve(count)

    def teardown(self) -> None:
        self.world.settle()


class ReplicatedMachine(Machine):
    """The same with replicas, which confirm or do not."""

    WAIT_REPLICAS = REPLICAS

    @rule(confirming=st.integers(0, REPLICAS + 1), blocked=st.integers(0, 20))
    def replicas(self, confirming: int, blocked: int) -> None:
        self.world.step_replicas(confirming, blocked)

    @rule()
    def promote(self) -> None:
        self.world.step_promote()


SETTINGS = settings(max_examples=60, stateful_step_count=80, deadline=None, print_blob=True)
TestEngine = Machine.TestCase
TestEngine.settings = SETTINGS
TestEngineWithReplicas = ReplicatedMachine.TestCase
TestEngineWithReplicas.settings = SETTINGS

# How often each step is taken in a walk, in some sorts of weather.
COMMON = {
    "connect": 3,
    "publish": 6,
    "backend": 4,
    "flow": 12,
    "acknowledge": 10,
    "look": 10,
    "execute": 8,
    "answer": 10,
    "time": 2,
    "headers": 0.5,
}
WEATHER: dict[str, dict[str, float]] = {
    "calm": {},
    "clients": {"come again": 1, "disconnect": 0.5, "steal": 0.5, "writable": 3},
    "refusals": {"refuse": 3, "writable": 1, "restore": 3},
    "losses": {"lose": 0.7, "restore": 3},
    "one loss after the other": {"lose": 1.2, "restore": 8, "connect": 8},
    "storm": {
        "come again": 0.3,
        "disconnect": 0.3,
        "refuse": 2,
        "lose": 0.5,
        "restore": 3,
        "snapshot": 1,
        "writable": 1,
    },
    "hunger": {"starve": 1, "lose": 0.3, "restore": 3},
    "slow replicas": {"replicas": 2, "lose": 0.4, "restore": 3, "come again": 0.3, "writable": 1},
    "promotions": {
        "replicas": 2,
        "lose": 0.4,
        "promote": 3,
        "restore": 2,
        "come again": 0.3,
        "refuse": 0.5,
        "connect": 8,
    },
    "promotions and hunger": {"replicas": 2, "starve": 0.7, "lose": 0.3, "promote": 3, "restore": 2, "connect": 8},
}


def walk(rng: random.Random, weather: str, steps: int) -> World:
    """A world after so many random steps."""
    world = World(REPLICAS if "replicas" in WEATHER[weather] else 0)
    older = weather == "storm"
    clients = world.clients
    actions: dict[str, Callable[[], None]] = {
        "connect": world.step_connect_all,
        "come again": lambda: world.step_connect(rng.choice(clients)),
        "disconnect": lambda: world.step_disconnect(rng.choice(clients)),
        "steal": lambda: world.step_steal(rng.choice(clients)),
        "publish": lambda: world.step_publish(rng.choice(clients), rng.choice(clients), rng.randrange(3)),
        "backend": lambda: world.step_backend(
            rng.choice(clients), rng.randrange(3), rng.choice([0, 0, 0, 150]), rng.random() < 0.1
        ),
        "flow": lambda: world.step_flow(rng.choice(clients), rng.choice([1, 5, 50, 1000])),
        "acknowledge": lambda: world.step_acknowledge(rng.choice(clients), rng.randrange(4)),
        "writable": lambda: world.step_writable(rng.choice(clients), rng.random() < 0.6),
        "look": lambda: world.step_look(rng.choice([0, 30, 300, *[1 << 20] * 7])),
        "execute": lambda: world.step_execute(rng.randrange(1, 8)),
        "answer": lambda: world.step_answer(rng.choice([1, 10, 100, 10_000])),
        "refuse": lambda: world.step_refuse(rng.choice([b"", b"", b"", *REFUSALS])),
        "headers": lambda: world.step_headers(rng.random() < 0.4, rng.random() < 0.5),
        "snapshot": world.step_snapshot,
        "lose": world.step_lose,
        "restore": lambda: world.step_restore(older and rng.random() < 0.5),
        "time": lambda: world.step_time(rng.choice([1, 20, 100, 300])),
        "starve": lambda: world.step_starve(rng.randrange(1, 4)),
        "replicas": lambda: world.step_replicas(
            rng.choice([0, 1, REPLICAS, REPLICAS, REPLICAS]), rng.choice([0, 0, 3, 30])
        ),
        "promote": world.step_promote,
    }
    odds = COMMON | WEATHER[weather]
    for name in rng.choices(list(odds), list(odds.values()), k=steps):
        actions[name]()
    return world


@pytest.mark.parametrize("weather", WEATHER)
@pytest.mark.parametrize("seed", range(WALKS // len(WEATHER)))
def test_a_walk_ends_with_nothing_missing(weather: str, seed: int) -> None:
    world = walk(random.Random(f"{weather} {seed}"), weather, STEPS)
    world.settle()
    assert sum(len(client.got) for client in world.clients) > 0
    assert sum(len(client.promised) for client in world.clients) > 0
