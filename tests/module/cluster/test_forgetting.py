"""Forgetting a large table of routes: in steps, while the server answers."""

import time

from tests.module.cluster.routes_support import Node, Nodes
from tests.support import eventually

ROUTES = 150_000
BATCH = 2500
STEP_S = 0.005


def fill(node: Node, count: int) -> None:
    """Tell it routes."""
    with node.client.pipeline(transaction=False) as pipeline:
        for begin in range(0, count, BATCH):
            pairs = [word for i in range(begin, min(begin + BATCH, count)) for word in (f"{i % 977}/f{i}", i % 16384)]
            pipeline.execute_command("ROUTE.ADD", *pairs)
        pipeline.execute()


def forgotten(node: Node) -> int:
    """Bytes that are not freed yet."""
    found: int = node.client.execute_command("ROUTE.INFO")[b"forgotten"]
    return found


def test_a_large_table_is_forgotten_in_steps(nodes: Nodes) -> None:
    node = nodes.all[0]
    fill(node, ROUTES)
    before = node.info()
    assert before.routes == ROUTES
    node.client.config_resetstat()
    node.renew()
    assert node.info().routes == node.info().bytes == 0
    assert 0 < forgotten(node) <= before.bytes
    spent = node.client.info("commandstats")["cmdstat_ROUTE.RENEW"]
    assert spent["usec"] < STEP_S * 1e6
    eventually(lambda: forgotten(node) == 0, 20.0, "a table that is freed")


def test_routes_that_are_added_meanwhile_take_the_place_of_those_that_were_forgotten(nodes: Nodes) -> None:
    node = nodes.all[0]
    fill(node, ROUTES)
    most = node.info().bytes
    node.renew()
    fill(node, ROUTES)
    assert node.info().bytes + forgotten(node) <= most * 1.05
    assert node.info().routes == ROUTES
    for _ in range(5):
        node.renew()
        node.add("a", 1)
    assert node.info().routes == 1
    eventually(lambda: forgotten(node) == 0, 20.0, "tables that are freed")
    assert node.info().bytes < 2000


def test_the_server_answers_while_it_forgets(nodes: Nodes) -> None:
    node = nodes.all[0]
    fill(node, ROUTES)
    node.renew()
    pings = 0
    begun = time.monotonic()
    while forgotten(node) > 0 and time.monotonic() - begun < 20:
        assert node.client.ping()
        pings += 1
    assert pings > 3
