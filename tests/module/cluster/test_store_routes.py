"""A shard of history is a subscriber of its store's filters, so that publishers of a cluster find it."""

from holdmq.core import slot_of
from tests.module.cluster.routes_support import Nodes

SEED = "0123456789abcdef0123456789abcdef"


def store(nodes: Nodes, changed: int, *filters: str) -> None:
    """Make the store, or change its filters, on all nodes."""
    words = [word for one in filters for word in ("FILTER", one)]
    for node in nodes.all:
        node.client.execute_command("HISTORY.STORE", "kept", *words, "SHARDS", 3, "SEED", SEED, "CHANGED", changed)


def exported(nodes: Nodes) -> set[tuple[bytes, int]]:
    """All routes of all nodes."""
    first = nodes.all[0]
    n = first.info().generation
    return {route for node in nodes.all for page in node.pages(first.id, n) for route in page.routes}


def test_the_shards_of_a_store_are_exported_as_routes(nodes: Nodes) -> None:
    slots = [slot_of(f"{{kept/{shard}}}") for shard in range(3)]
    store(nodes, 1, "plant/#", "t/+")
    assert exported(nodes) == {(one, slot) for one in (b"plant/#", b"t/+") for slot in slots}
    store(nodes, 2, "t/+")
    assert exported(nodes) == {(b"t/+", slot) for slot in slots}
    for shard, slot in enumerate(slots):
        assert nodes.of(f"kept/{shard}").client.execute_command("ROUTE.UNUSED", "t/+", slot) == 0
    for node in {id(node): node for node in (nodes.of(f"kept/{shard}") for shard in range(3))}.values():
        node.client.execute_command("HISTORY.UNSTORE", "kept")
    assert exported(nodes) == set()
