"""A client that another module logs in as somebody else has the rights of that user from then on."""

import subprocess
from pathlib import Path

import pytest
import redis

from tests.module.channels_support import MakeServer, set_policies

SOURCE = Path(__file__).parents[1] / "support" / "login_module.c"


@pytest.fixture(scope="module")
def login_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, compiled."""
    library = tmp_path_factory.mktemp("login") / "login.so"
    command = ["gcc", "-std=c11", "-O1", "-fPIC", "-shared", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def guest(fresh_server: MakeServer, login_module: Path) -> redis.Redis:
    """A server with both modules."""
    server = fresh_server()
    client = server.client()
    client.module_load(str(login_module))
    client.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~own:*", "&own:*", "+@all")
    return client


def test_who_may_not_write_the_channels_key_holds_nothing(guest: redis.Redis) -> None:
    set_policies(guest, "*")
    guest.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~own:*", "&*", "+@all")
    publisher = guest.client()
    assert publisher.publish("ch", "a") == 0
    publisher.execute_command("LOGIN.AS", "poor")
    assert publisher.publish("ch", "b") == 0
    assert guest.execute_command("CHANNEL.RANGE", "ch", 0, -1) == [b"a"]


def test_who_may_not_use_a_topic_does_not(guest: redis.Redis) -> None:
    with guest.client() as connection:
        connection.execute_command("HISTORY.STORE", "all", "FILTER", "#")
        connection.execute_command("HISTORY.INFO", "all")
        connection.execute_command("LOGIN.AS", "poor")
        with pytest.raises(redis.exceptions.NoPermissionError):
            connection.execute_command("HISTORY.INFO", "all")
