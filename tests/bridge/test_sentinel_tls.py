"""Sentinels and servers with TLS: the bridge and the command line find and follow the primary over TLS alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from holdmq.cli import main
from tests.bridge.certificates import Certificates
from tests.bridge.test_faults import Publisher
from tests.support import BridgeProcess, SentinelProcess, Server, ServerKind, eventually, selected_kinds
from tests.support.ports import reserve_port
from tests.support.sentinel import SERVICE

FAILOVER_S = 60.0
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]


def server_kinds() -> list[ServerKind]:
    """Those of Debian, which are built with TLS."""
    return [kind for kind in selected_kinds() if kind.name == "redis-7.0"]


def test_sentinels_with_tls_are_followed(
    fresh_server: Callable[..., Server],
    bridge: Callable[..., BridgeProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = Certificates(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    ports = [reserve_port() for _ in range(3)]
    common = [
        ("tls-cert-file", files.server),
        ("tls-key-file", files.key),
        ("tls-ca-cert-file", files.ca),
        ("tls-auth-clients", "no"),
        ("tls-replication", "yes"),
    ]

    def settings(port: int) -> list[str]:
        return [f"{name} {value}" for name, value in (("tls-port", port), *common)]

    primary, replica = (fresh_server(config=settings(port.number)) for port in ports[:2])
    replica.client().replicaof("127.0.0.1", ports[0].number)
    watch = [
        *settings(ports[2].number),
        f"sentinel monitor {SERVICE} 127.0.0.1 {ports[0].number} 1",
        f"sentinel down-after-milliseconds {SERVICE} 4000",
        f"sentinel failover-timeout {SERVICE} 3000",
    ]
    (tmp_path / "sentinel").mkdir()
    sentinel = SentinelProcess(primary, tmp_path / "sentinel", settings=watch)
    try:
        sentinel.start()
        url = f"sentinel://127.0.0.1:{ports[2].number}/{SERVICE}?tls=yes"
        made = bridge(url, arguments=QUICK)
        publisher = Publisher(made.port, "n")
        publisher.start()
        publisher.wait_for_more(10)

        def moved() -> bool:
            with redis.Redis(port=sentinel.port) as client:
                return bool(client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1] == ports[1].number)

        sentinel.fail_over_until(moved, what="a Sentinel that names the new primary")
        eventually(lambda: "the primary has moved" in made.log_text(), FAILOVER_S, "a bridge that was told")
        publisher.wait_for_more(10)
        publisher.finish()
        asked = CliRunner().invoke(main, ["--url", url, "info"])
        assert asked.exit_code == 0, asked.output
        plain = CliRunner().invoke(main, ["--url", url.partition("?")[0], "info"])
        assert plain.exit_code == 1, plain.output
    finally:
        sentinel.close()
        for port in ports:
            port.release()
