"""Pages and a server agree on the module's settings.

The configuration lines of docs/operations.md are taken, and do what the page says.  docs/configuration.md has the
names, defaults and ranges of CONFIG.
"""

from collections.abc import Callable
from importlib.metadata import version

import pytest
import redis

from holdmq.server import find_module
from tests.support import Server
from tests.support.pages import blocks
from tools.generate_configuration import MODULE, ModuleSetting

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


def test_a_configured_policy_list_wins_over_load_arguments(fresh_server: MakeServer) -> None:
    lines = [f"loadmodule {find_module()} CHANNELS news:*", 'holdmq.policies "other hold=all"']
    client = fresh_server(module=False, config=lines).client()
    assert client.config_get("holdmq.policies") == {"holdmq.policies": "other hold=all"}


def test_the_settings_are_those_of_the_page(server: Server) -> None:
    there = server.client().config_get("holdmq.*")
    assert set(there) == {f"holdmq.{setting.name}" for setting in MODULE}
    for setting in MODULE:
        if setting.name != "policies":
            assert there[f"holdmq.{setting.name}"] == setting.default


@pytest.mark.parametrize(
    "setting", [setting for setting in MODULE if setting.range is not None], ids=lambda one: one.name
)
def test_the_range_of_a_number_is_that_of_the_page(server: Server, setting: ModuleSetting) -> None:
    assert setting.range is not None
    client, name = server.client(), f"holdmq.{setting.name}"
    least, most = setting.range
    for value in (least, most):
        client.config_set(name, value)
        assert client.config_get(name) == {name: str(value)}
    for value in (least - 1, most + 1):
        with pytest.raises(redis.ResponseError, match=f"between {least} and {most} inclusive"):
            client.config_set(name, value)


@pytest.mark.parametrize("setting", [setting for setting in MODULE if setting.words], ids=lambda one: one.name)
def test_the_words_of_a_setting_are_those_of_the_page(server: Server, setting: ModuleSetting) -> None:
    client, name = server.client(), f"holdmq.{setting.name}"
    words = [word for word in setting.words if " " not in word]
    for word in words:
        client.config_set(name, word)
        assert client.config_get(name) == {name: word}
    with pytest.raises(redis.ResponseError):
        client.config_set(name, "another word")


def test_a_policy_list_may_have_as_many_bytes_as_the_page_says(server: Server) -> None:
    client = server.client()
    client.config_set("holdmq.policies", " " * 65536)
    with pytest.raises(redis.ResponseError, match="65536"):
        client.config_set("holdmq.policies", " " * 65537)


def test_the_module_says_the_version_of_the_packages(server: Server) -> None:
    major, minor, patch = map(int, version("holdmq").split("."))
    assert server.client().info("holdmq")["holdmq_module_version"] == major * 10000 + minor * 100 + patch
