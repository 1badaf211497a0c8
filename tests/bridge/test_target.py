"""The URL of the server: what is refused before anything connects, and a password that changes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdmq_bridge.base.target import Target
from tests.bridge.conftest import Connect
from tests.support import BridgeProcess, Server, eventually

FIRST, SECOND = "first", "second"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://127.0.0.1:6379/abc", "'/abc'"),
        ("redis://127.0.0.1:6379/1/2", "'/1/2'"),
        ("redis://a..b:6379", "'a..b'"),
        ("sentinel://a..b:26379/service", "'a..b'"),
        ("sentinel://127.0.0.1:99999/service", "'127.0.0.1:99999'"),
        ("sentinel://127.0.0.1:0/service", "'127.0.0.1:0'"),
        ("sentinel://127.0.0.1:26379/service?password=x", "accepted are sentinel_username, sentinel_password, tls"),
        ("sentinel://127.0.0.1:26379/service?tls=maybe", "accepted are yes and no"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_what_is_wrong(url: str, named: str) -> None:
    with pytest.raises(ValueError, match="server URL") as caught:
        Target.parse(url)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("url", "database"),
    [("redis://127.0.0.1", 0), ("redis://127.0.0.1/", 0), ("redis://my_host:6379/7", 7), ("redis://[::1]:6379/1", 1)],
)
def test_a_url_may_name_a_database(url: str, database: int) -> None:
    assert Target.parse(url).database == database


def test_a_password_that_is_changed_in_its_file_is_used_by_the_next_connections(
    fresh_server: Callable[..., Server], bridge: Callable[..., BridgeProcess], dial: Connect, tmp_path: Path
) -> None:
    server = fresh_server(password=FIRST)
    secret = tmp_path / "secret"
    secret.write_text(f"{FIRST}\n")
    made = bridge(
        f"redis://127.0.0.1:{server.port}",
        environment={"HOLDMQ_PASSWORD_FILE": str(secret)},
        arguments=["--retry-first-s", "0.02", "--retry-max-s", "0.1", "--report-interval-s", "0.2"],
    )
    sender = dial(made.port, "c1")
    sender.publish("a", b"1", qos=1)
    secret.write_text(f"{SECOND}\n")
    with server.client() as admin:
        admin.config_set("requirepass", SECOND)
        for kind in ("pubsub", "normal"):
            admin.client_kill_filter(_type=kind, skipme=True)
        sender.publish("a", b"2", qos=1, pid=2)
        eventually(lambda: admin.zcard("{holdmq:bridges}:names") == 1)
        admin.delete("{holdmq:bridges}:names")
        eventually(lambda: admin.zcard("{holdmq:bridges}:names") == 1, 10, "another report")
    dial(made.port, "c2").publish("a", b"3", qos=1)
