"""The configuration lines of docs/operations.md are taken by a server, and do what the page says."""

from collections.abc import Callable

import pytest

from holdmq.server import find_module
from tests.support import Server
from tests.support.pages import blocks

MakeServer = Callable[..., Server]


@pytest.mark.parametrize(
    ("kind", "held"), [("conf all", {"news:1": 1, "other": 1}), ("conf some", {"news:1": 1, "other": 0})]
)
def test_the_lines_that_load_the_module_are_taken(fresh_server: MakeServer, kind: str, held: dict[str, int]) -> None:
    [block] = blocks("docs/operations.md", kind)
    assert "/path/to/holdmq.so" in block.text
    lines = block.text.replace("/path/to/holdmq.so", str(find_module())).splitlines()
    client = fresh_server(module=False, config=lines).client()
    for channel in held:
        client.publish(channel, "x")
    assert {channel: client.llen(channel) for channel in held} == held
