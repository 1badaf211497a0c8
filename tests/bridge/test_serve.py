"""One bridge process from its beginning to its end, also where the beginning fails."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from holdmq_bridge.process.settings import Settings
from holdmq_bridge.serve import OTHER_FILES, serve
from holdmq_bridge.sockets.listeners import Listeners
from tests.bridge import packets
from tests.bridge.certificates import Certificates, secured
from tests.bridge.conftest import Connect
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, eventually
from tests.support.ports import Port, reserve_port

END_S = 10.0


async def _refuse(_listeners: Listeners) -> None:
    await asyncio.sleep(0)
    raise OSError("no more descriptors")


async def _serve_and_look(settings: Settings) -> set[str]:
    """What is still going on after `serve` has failed."""
    with pytest.raises(OSError, match="no more descriptors"):
        async with asyncio.timeout(END_S):
            await serve(settings)
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


def test_a_bridge_that_cannot_begin_to_serve_leaves_nothing_that_keeps_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listeners, "serve", _refuse)
    nobody = reserve_port()
    try:
        settings = Settings(port=0, redis=f"redis://127.0.0.1:{nobody.number}")
        assert asyncio.run(_serve_and_look(settings)) == set()
    finally:
        nobody.release()


def test_a_bridge_keeps_the_descriptors_that_it_needs_and_refuses_clients_instead(
    server: Server, bridge: Callable[..., BridgeProcess], dial: Connect
) -> None:
    room = 20
    made = bridge(server, open_files=OTHER_FILES + room)
    lowered = [line for line in map(json.loads, made.log_text().splitlines()) if "max_connections" in line]
    assert [line["max_connections"] for line in lowered] == [room]
    clients = [dial(made.port, f"c{number}") for number in range(room)]
    assert not any(_connects(made.port) for _ in range(3))
    clients[0].publish("a", b"1", qos=1)  # the connection to the server is still there
    clients.pop().close()
    eventually(lambda: _connects(made.port), 10, "room for a client after another one left")
    text = made.log_text()
    assert text.count("max_connections was lowered") == 1
    assert text.count("connections are refused: max_connections is reached") == 1
    assert "connections temporarily cannot be accepted" not in made.log_text()
    assert "the connection to the server was lost" not in made.log_text()


def test_connections_that_never_finish_their_handshake_leave_descriptors_for_the_server(
    server: Server, bridge: Callable[..., BridgeProcess], port: Port, tmp_path: Path
) -> None:
    limit = OTHER_FILES + 20
    made = bridge(server, arguments=secured(Certificates(tmp_path), "--tls-port", port), open_files=limit)
    silent: list[socket.socket] = []
    try:
        silent.extend(socket.create_connection(("127.0.0.1", port.number), 10) for _ in range(limit))
        eventually(lambda: "connections are refused" in made.log_text(), 10, "connections that are refused")
        assert not _connects(made.port)
        with server.client() as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        eventually(lambda: made.log_text().count("connected to the server") == 2, 10, "a new connection to the server")
        assert len(list(Path(f"/proc/{made.pid}/fd").iterdir())) < limit - OTHER_FILES // 2
    finally:
        for one in silent:
            one.close()
    eventually(lambda: _connects(made.port), 10, "room for a client")
    assert "connections temporarily cannot be accepted" not in made.log_text()


def test_connections_that_send_no_proxy_header_leave_descriptors_for_the_server(
    server: Server, bridge: Callable[..., BridgeProcess]
) -> None:
    limit = OTHER_FILES + 20
    made = bridge(server, arguments=["--proxy-protocol", "true", "--allow-anonymous", "true"], open_files=limit)
    silent: list[socket.socket] = []
    try:
        silent.extend(socket.create_connection(("127.0.0.1", made.port), 10) for _ in range(limit))
        eventually(lambda: "connections are refused" in made.log_text(), 10, "connections that are refused")
        with server.client() as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        eventually(lambda: made.log_text().count("connected to the server") == 2, 10, "a new connection to the server")
        assert len(list(Path(f"/proc/{made.pid}/fd").iterdir())) < limit - OTHER_FILES // 2
    finally:
        for one in silent:
            one.close()
    proxied = b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 1883\r\n"
    eventually(lambda: _connects(made.port, proxied), 10, "room for a client")
    assert "connections temporarily cannot be accepted" not in made.log_text()


def _connects(port: int, header: bytes = b"") -> bool:
    with contextlib.closing(Talk(port)) as talk:
        try:
            talk.send(header + packets.connect())
            talk.expect(packets.connack())
        except (AssertionError, ConnectionError):
            return False
        return True


def test_a_limit_of_open_files_that_leaves_room_for_no_client_is_named(server: Server, tmp_path: Path) -> None:
    made = BridgeProcess(server.url, tmp_path, open_files=OTHER_FILES)
    try:
        with pytest.raises(RuntimeError, match=f"the limit of open files is {OTHER_FILES}"):
            made.start()
    finally:
        made.close()
