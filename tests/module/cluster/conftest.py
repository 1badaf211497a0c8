"""Clusters of three nodes that exchange routes."""

from collections.abc import Callable, Iterator

import pytest

from tests.module.cluster.routes_support import Failover, Nodes
from tests.module.cluster_support import FAILS_OVER
from tests.support import Cluster, Server


@pytest.fixture
def nodes(cluster: Cluster) -> Nodes:
    """Three nodes that know nothing of routes, without sessions."""
    found = Nodes(cluster)
    for node in found.all:
        node.renew()
    return found


@pytest.fixture
def known(nodes: Nodes) -> Nodes:
    """Three nodes that know each other's routes."""
    for node in nodes.all:
        node.learn(nodes.all)
    return nodes


@pytest.fixture
def moved(fresh_cluster: Callable[..., Cluster]) -> Iterator[Nodes]:
    """Three nodes of a test's own; afterwards their indexes equal a rebuild."""
    found = Nodes(fresh_cluster(3))
    yield found
    for node in found.all:
        node.server.check_indexes()


@pytest.fixture
def failover(fresh_cluster: Callable[..., Cluster], fresh_server: Callable[..., Server]) -> Failover:
    """Three nodes of a test's own, any of which a replica can replace."""
    return Failover(Nodes(fresh_cluster(3, config=FAILS_OVER)), fresh_server)
