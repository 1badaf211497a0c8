"""What the image does before it serves: a password or an explicit no, and a configuration that lasts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from holdmq.server import ServerProcess, connect, find_server
from holdmq_bridge.container import RefusedError, lines_of, password_of, write_server_configuration
from tests.support import embedded_kinds, reserve_port

server_kinds = embedded_kinds
Start = Callable[[dict[str, str]], ServerProcess]

FIRST, SECOND = "open sesame", "another"
NO_PASSWORD = {"HOLDMQ_ALLOW_NO_PASSWORD": "yes", "HOLDMQ_PASSWORD_FILE": "/nowhere"}


def test_without_a_password_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="HOLDMQ_ALLOW_NO_PASSWORD=yes"):
        write_server_configuration(tmp_path, {"HOLDMQ_PASSWORD_FILE": str(tmp_path / "none")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["no", "1", "true", ""])
def test_only_yes_does_without_a_password(word: str) -> None:
    with pytest.raises(RefusedError):
        password_of({**NO_PASSWORD, "HOLDMQ_ALLOW_NO_PASSWORD": word})
    assert password_of(NO_PASSWORD) is None


def test_an_empty_secret_is_not_a_password(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("\n")
    with pytest.raises(RefusedError, match="no password"):
        password_of({"HOLDMQ_PASSWORD_FILE": str(secret)})


def test_a_secret_whose_file_is_missing_on_the_host_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="is a folder"):
        password_of({"HOLDMQ_PASSWORD_FILE": str(tmp_path)})


def test_a_configuration_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"none\.conf"):
        lines_of({"HOLDMQ_CONFIG_FILE": str(tmp_path / "none.conf")})


def server_of(folder: Path, environment: dict[str, str], port: int, password: str | None) -> ServerProcess:
    path = write_server_configuration(
        folder,
        {**environment, "HOLDMQ_CONFIG": f"bind 127.0.0.1\nport {port}\n" + environment.get("HOLDMQ_CONFIG", "")},
    )
    return ServerProcess([find_server()], path, port=port, log=folder / "log", password=password)


def test_the_configuration_is_that_of_file_and_environment_and_lasts(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "my.conf"
    secret.write_text(f"{FIRST}\n")
    file.write_text("# mine\nmaxmemory 300mb\nholdmq.session-limit 7000\n")
    environment = {
        "HOLDMQ_PASSWORD_FILE": str(secret),
        "HOLDMQ_CONFIG_FILE": str(file),
        "HOLDMQ_CONFIG": "maxmemory 200mb",
    }
    data = tmp_path / "data"
    data.mkdir()
    with reserve_port() as port:
        with server_of(data, environment, port.number, FIRST):
            with pytest.raises(redis.AuthenticationError), connect("127.0.0.1", port.number) as stranger:
                stranger.ping()
            with connect("127.0.0.1", port.number, password=FIRST, decode_responses=True) as client:
                assert client.config_get("maxmemory") == {"maxmemory": str(200 * 1024 * 1024)}
                assert client.config_get("holdmq.session-limit") == {"holdmq.session-limit": "7000"}
                assert client.config_get("appendfsync") == {"appendfsync": "always"}
                client.config_set("holdmq.session-ttl", 3600)
                client.config_set("appendfsync", "everysec")
                client.config_rewrite()
        secret.write_text(f"{SECOND}\n")
        with (
            server_of(data, environment, port.number, SECOND),
            connect("127.0.0.1", port.number, password=SECOND, decode_responses=True) as client,
        ):
            assert client.config_get("holdmq.session-ttl") == {"holdmq.session-ttl": "3600"}
            assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
            with (
                pytest.raises(redis.AuthenticationError),
                connect("127.0.0.1", port.number, password=FIRST) as old,
            ):
                old.ping()
    assert (data / "server.conf").stat().st_mode & 0o077 == 0
