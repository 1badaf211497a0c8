"""Under load, while slots move key by key: every acknowledged message is there once and in order, on the right node."""

import contextlib
import itertools
import subprocess
import time
from collections.abc import Callable

import pytest
import redis
from redis.crc import key_slot

from holdmq import HoldMQ
from tests.module.cluster_support import SlotMove, node_id
from tests.support import Cluster, eventually
from tests.system.cluster_load import TOPIC, WAIT_S, load_on

MakeCluster = Callable[..., Cluster]


def test_sessions_whose_slots_move_key_by_key_keep_every_acknowledged_message(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    names = [f"c{number}" for number in range(4)]
    batches = itertools.cycle([1, 7, 50])
    with load_on(cluster, names) as load:
        load.wait_for_progress()
        for name in [*names, f"{TOPIC}"] * 2:
            slot = key_slot(name.encode())
            source = next(node for node in cluster.nodes if slot in node.slots())
            target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
            move = SlotMove(cluster, source, target, slot)
            move.begin()
            moved = sum(move.move_all(next(batches)))
            assert moved > 0
            move.end()
            load.wait_for_progress()
    load.check()


def test_a_reshard_by_the_cluster_tool_keeps_every_acknowledged_message(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(3)
    source, target, _other = cluster.nodes
    low = range(64)
    names = [name for name in (f"d{number}" for number in range(2000)) if key_slot(name.encode()) in low][:4]
    words = ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{source.port}", "--cluster-from", node_id(source)]
    words += ["--cluster-to", node_id(target), "--cluster-slots", str(len(low)), "--cluster-yes"]
    with load_on(cluster, names) as load:
        load.wait_for_progress()
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        eventually(lambda: set(low) <= target.slots(), WAIT_S, "the slots on their new node")
        load.wait_for_progress()
    load.check()


def test_commands_wait_no_longer_than_requested(fresh_cluster: MakeCluster) -> None:
    cluster = fresh_cluster(2)
    slot = key_slot(b"c0")
    source = next(node for node in cluster.nodes if slot in node.slots())
    target = next(node for node in cluster.nodes if node is not source)
    with contextlib.closing(cluster.client()) as client:
        hold = HoldMQ(client, moving_timeout=0.5)
        hold.session("c0").subscribe(TOPIC, qos=1)
        SlotMove(cluster, source, target, slot).begin()
        waits: list[tuple[Callable[[], object], str]] = [
            (lambda: hold.session("c0").add(b"a"), "TTL exhausted"),
            (lambda: hold.topics.publish(TOPIC, b"p", qos=1), f"{slot}-{slot}: they are on their way"),
        ]
        for command, told in waits:
            begun = time.monotonic()
            with pytest.raises(redis.RedisError, match=told):
                command()
            assert 0.4 < time.monotonic() - begun < WAIT_S
