"""A bridge speaks TLS with all nodes of a cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridge.certificates import Certificates
from tests.bridge.test_cluster_command_line import crosses_nodes, lines
from tests.support import BridgeProcess, Cluster, Server, ServerKind, selected_kinds
from tests.support.ports import reserve_port


def server_kinds() -> list[ServerKind]:
    """Those of Debian, which are built with TLS."""
    return [kind for kind in selected_kinds() if kind.name == "redis-7.0"]


def test_a_cluster_with_tls_is_served(
    server_kind: ServerKind,
    tmp_path: Path,
    bridge_to: Callable[..., BridgeProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = Certificates(tmp_path / "tls")
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    ports = [reserve_port() for _ in range(2)]
    common = [
        f"tls-cert-file {files.server}",
        f"tls-key-file {files.key}",
        f"tls-ca-cert-file {files.ca}",
        "tls-auth-clients no",
        "tls-cluster yes",
    ]
    nodes = [
        Server(server_kind, tmp_path / f"n{at}", cluster=True, config=[f"tls-port {port.number}", *common])
        for at, port in enumerate(ports)
    ]
    cluster = Cluster(nodes)
    try:
        cluster.start()
        bridge = bridge_to(f"rediss://localhost:{ports[0].number}")
        crosses_nodes(cluster, bridge.port)
        used = {
            line["server"].removesuffix("/0").rpartition(":")[2] for line in lines(bridge, "connected to the server")
        }
        assert used == {str(port.number) for port in ports}
        bridge.stop()
    finally:
        for node in nodes:
            node.close()
        for port in ports:
            port.release()
