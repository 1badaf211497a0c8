"""Fixtures of the module's tests."""

from collections.abc import Iterator

import pytest

from tests.module.channels_support import stock
from tests.support import Server, ServerKind


@pytest.fixture(scope="module")
def stock_server(server_kind: ServerKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without the module."""
    with stock(server_kind, tmp_path_factory.mktemp("stock")) as server:
        yield server
