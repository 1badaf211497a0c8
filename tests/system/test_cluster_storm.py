"""Nothing is lost or out of order over a cluster whose nodes are killed, replaced and lose slots: the short form.

`make storm ARGS=--cluster` is the long one.  A run that found something prints its seed.
"""

import os
import random
from pathlib import Path

import pytest

from tests.system.cluster_storm import ClusterStorm, Plan
from tests.system.test_mqtt_storm import SEED

SECONDS = 10.0


@pytest.mark.timeout(240)  # most of it are bounds of what takes a second
def test_nothing_is_lost_over_a_cluster_while_nodes_die_are_replaced_and_lose_slots(tmp_path: Path) -> None:
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(1_000_000))
    lines = [f"seed {seed}"]
    found = ClusterStorm(Plan(seed, SECONDS), tmp_path, lines.append).run()
    assert not found, "\n".join([*lines, *found])
