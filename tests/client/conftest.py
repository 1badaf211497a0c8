"""Fixtures of the Python client's tests."""

from collections.abc import Iterator

import pytest

from holdmq import HoldMQ
from tests.support import Server


@pytest.fixture
def hold(server: Server) -> Iterator[HoldMQ]:
    """A client of the server under test."""
    with HoldMQ.from_url(server.url) as made:
        yield made
