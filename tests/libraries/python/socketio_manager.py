"""A conftest.py for python-socketio's own suite: its servers work over Redis, not in the memory of one process."""

import os
from typing import Any

import pytest
import socketio

URL = os.environ["SOCKETIO_REDIS"]


class Server(socketio.Server):  # type: ignore[misc]
    """A server whose clients are those of all processes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(client_manager=socketio.RedisManager(URL), **options)


class AsyncServer(socketio.AsyncServer):  # type: ignore[misc]
    """The same for asyncio."""

    def __init__(self, **options: Any) -> None:
        super().__init__(client_manager=socketio.AsyncRedisManager(URL), **options)


socketio.Server, socketio.AsyncServer = Server, AsyncServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The manager listens as long as its process lives: threads are not counted after each test."""
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None and hasattr(item.cls, "teardown_method"):
            item.cls.teardown_method = lambda self: None
