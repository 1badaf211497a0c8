"""A broker that knows no bridges: a gate before a HoldMQ broker that refuses the bit 0x80 of the protocol level.

Such brokers answer a CONNECT whose level they do not know with 0x01 and close [MQTT-3.1.2-2]; everything else they do
is what the broker behind the gate does.
"""

import contextlib
import socket
import threading

BUFFER_BYTES = 65536
LEVEL_AT = 8  # two bytes of fixed header (a short CONNECT), then 00 04 "MQTT"
REFUSED = b"\x20\x02\x00\x01"


class Gate:
    """Forwards connections to a port of this machine, but those that say that they are a bridge."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        """Cuts all connections and waits for the threads."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            begin = b""
            while len(begin) <= LEVEL_AT:
                more = client.recv(BUFFER_BYTES)
                if not more:
                    return
                begin += more
            if begin[LEVEL_AT] & 0x80:
                client.sendall(REFUSED)
                client.shutdown(socket.SHUT_RDWR)
                return
            behind = socket.create_connection(("127.0.0.1", self._behind))
            self._sockets.append(behind)
            behind.sendall(begin)
            self._start(_forward, behind, client)
            _forward(client, behind)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(BUFFER_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
