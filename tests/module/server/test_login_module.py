"""A client that another module logs in as somebody else has the rights of that user from then on."""

import subprocess
from pathlib import Path

import pytest
import redis

from tests.module.channels_support import MakeServer, set_policies
from tests.support import RawClient, ServerKind, eventually

SOURCE = Path(__file__).parents[2] / "support" / "login_module.c"


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
    client.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~own:*", "&own:*", "+@all")
    return client


def test_anyone_who_may_not_write_the_channels_key_holds_nothing(guest: redis.Redis) -> None:
    set_policies(guest, "*")
    guest.execute_command("ACL", "SETUSER", "poor", "&*")
    publisher = guest.client()
    assert publisher.publish("ch", "a") == 0
    publisher.execute_command("LOGIN.AS", "poor")
    assert publisher.publish("ch", "b") == 0
    assert guest.execute_command("CHANNEL.RANGE", "ch", 0, -1) == [b"a"]


def test_anyone_who_may_not_use_a_topic_does_not(guest: redis.Redis) -> None:
    with guest.client() as connection:
        connection.execute_command("HISTORY.STORE", "all", "FILTER", "#")
        connection.execute_command("HISTORY.INFO", "all")
        connection.execute_command("LOGIN.AS", "poor")
        with pytest.raises(redis.exceptions.NoPermissionError):
            connection.execute_command("HISTORY.INFO", "all")


def finishes(client: redis.Redis) -> bool:
    """Answer the AUTH that waits, if one does."""
    try:
        return bool(client.execute_command("LOGIN.FINISH"))
    except redis.exceptions.ResponseError:
        return False


def test_an_auth_that_another_module_answers_later_counts_from_its_answer_on(
    guest: redis.Redis, server_kind: ServerKind
) -> None:
    if not server_kind.hands_off_exactly:
        return  # before 7.2 no module answers AUTH
    set_policies(guest, "*")
    guest.execute_command("ACL", "SETUSER", "poor", "&*")
    with RawClient(guest.get_connection_kwargs()["port"]) as publisher:
        assert publisher.call("PUBLISH", "ch", "a") == 0
        publisher.send_all(("AUTH", "poor", "later"), ("PUBLISH", "ch", "b"))
        eventually(lambda: finishes(guest))
        assert publisher.read_many(2) == ["OK", 0]
        assert publisher.call("PUBLISH", "ch", "c") == 0
    assert guest.execute_command("CHANNEL.RANGE", "ch", 0, -1) == [b"a"]
