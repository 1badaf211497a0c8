"""Thousands of clients that connect at once are all let in, however low the rate of connects.

    make storm ARGS=--burst        5,000 raw clients and 1,000 of MQTT.js

Raw clients are sockets that send a CONNECT and wait; MQTT.js clients have their default options.  A raw client whose
connection is closed is counted as refused and stays away.
"""

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bridge import packets
from tests.support import BridgeProcess, Server, ServerKind
from tests.system.mqtt_comeback import HOST, Asker, NodeFleet

COUNTS = 5000, 1000
LONGEST_S = 60.0
SPARE_FILES = 200
SERVER_SETTINGS = ["appendfsync always"]


class RawClients:
    """Sockets that have sent their CONNECT.  `close` them."""

    def __init__(self, port: int, count: int) -> None:
        self.answers = 0
        self.refused = 0
        self._stack = contextlib.ExitStack()
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._left = count
        for number in range(count):
            connection = self._stack.enter_context(socket.create_connection((HOST, port)))
            connection.sendall(packets.connect(f"raw{number}"))
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)

    def wait(self, deadline: float) -> None:
        """Until each has its CONNACK, or has been closed, or it is too late."""
        while self._left and time.monotonic() < deadline:
            for key, _ in self._selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                self._take(key.fileobj)

    def _take(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(64)
        except ConnectionResetError:
            data = b""
        if data == packets.connack():
            self.answers += 1
        else:
            self.refused += 1
        self._selector.unregister(connection)
        self._left -= 1

    def close(self) -> None:
        """Closes them all."""
        self._stack.close()


def run(
    kind: ServerKind, folder: Path, counts: tuple[int, int], options: Sequence[str], say: Callable[[str], None]
) -> list[str]:
    """So many raw and MQTT.js clients connect at once; what is wrong then, nothing if all is well."""
    raw_count, mqttjs_count = counts
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, raw_count + mqttjs_count + SPARE_FILES)), hard))
    with contextlib.ExitStack() as stack:
        server = Server(kind, folder, aof=True, config=SERVER_SETTINGS)
        stack.callback(server.close)
        server.start()
        bridge = BridgeProcess(server.url, folder, arguments=options)
        stack.callback(bridge.close)
        bridge.start()
        asker = Asker(bridge.port)
        names = [f"mqttjs{number}" for number in range(mqttjs_count)]
        begun = time.monotonic()
        if names:
            node = NodeFleet(bridge.port, folder)
            stack.callback(node.close)
            node.join(*names, version=4)
        raw = RawClients(bridge.port, raw_count)
        stack.callback(raw.close)
        raw.wait(begun + LONGEST_S)
        took_s = time.monotonic() - begun
        say(f"{raw.answers} of {raw_count} raw clients connected after {took_s:.1f} s, {raw.refused} refused")
        found = [] if raw.answers == raw_count else [f"{raw_count - raw.answers} raw clients are not connected"]
        if names:
            answered, missing = asker.ask(names, LONGEST_S)
            say(f"{len(answered)} of {mqttjs_count} MQTT.js clients answered after {time.monotonic() - begun:.1f} s")
            found += [f"{len(missing)} MQTT.js clients never came"] if missing else []
        return found
