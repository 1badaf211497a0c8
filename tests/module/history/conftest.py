"""Fixtures of the tests of history."""

from collections.abc import Iterator

import pytest
import redis

from tests.module.history_support import check_all


@pytest.fixture
def posting_lists_hold(client: redis.Redis) -> Iterator[None]:
    """After the test, HISTORY.CHECK finds no difference in any store."""
    yield
    assert check_all(client) == []
