"""Clusters of three nodes that exchange routes."""

from collections.abc import Callable, Iterator

import pytest

from tests.module.cluster.routes_support import Nodes
from tests.support import Cluster


@pytest.fixture
def nodes(cluster: Cluster) -> Nodes:
    """Three nodes that know nothing of routes, without sessions."""
    found = Nodes(cluster)
    for node in found.all:
        node.renew()
    return found


@pytest.fixture
def moved(fresh_cluster: Callable[..., Cluster]) -> Iterator[Nodes]:
    """Three nodes of a test's own; afterwards their indexes equal a rebuild."""
    found = Nodes(fresh_cluster(3))
    yield found
    for node in found.all:
        node.server.check_indexes()
