"""A TCP proxy before a server that can lose a reply: the server has carried the command out, the client never hears."""

import contextlib
import socket
import threading

from tests.support import Server

BUFFER_BYTES = 65536


class Proxy:
    """Forwards connections to `server`; has a `url` as a server has.

    Attributes:
        swallowed: how many replies it has lost.
    """

    def __init__(self, server: Server) -> None:
        self.swallowed = 0
        self._server_port = server.port
        self._swallow = threading.Event()
        self._refusals: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [self._start(self._accept)]
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """As `from_url` takes it."""
        return f"redis://127.0.0.1:{self.port}"

    def swallow_next_reply(self) -> None:
        """The next bytes that the server sends are dropped, and their connection is cut."""
        self._swallow.set()

    def refuse_next_command(self, error: bytes) -> None:
        """Answers the first command after the next lost reply itself, with an error; it does not reach the server."""
        self._refusals.append(error)

    def cut(self) -> None:
        """Cuts all connections; new ones are taken."""
        for one in self._sockets[1:]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cuts all connections and waits for the threads."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets += [client, server]
            self._threads.append(self._start(self._forward, client, server, False))
            self._threads.append(self._start(self._forward, server, client, True))

    def _forward(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                if replies and self._swallow.is_set():
                    self._swallow.clear()
                    self.swallowed += 1
                    break
                if not replies and self._refusals and self.swallowed and (b".ADD" in data or b".APPEND" in data):
                    source.sendall(b"-" + self._refusals.pop() + b"\r\n")
                    continue
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
