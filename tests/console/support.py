"""A console as a child process, as an operator starts it, and clients of its API."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import redis

from holdmq.server import ChildProcess
from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User
from holdmq_bridge.auth.store import Store
from tests.support import eventually
from tests.support.ports import reserve_port

HOST = "127.0.0.1"
READY_S = 90.0
PASSWORD = "correct horse"  # noqa: S105 (of users that live for one test)
PASSWORD_HASH = hash_password(PASSWORD.encode())
API = "/api/v1"


class ConsoleProcess(ChildProcess):
    """A console on a free loopback port.

    Args:
        redis_url: the server that it uses.
        directory: where its log goes.
        environment: settings, as HOLDMQ_CONSOLE_<NAME>.
        arguments: further options.
        before: options of `holdmq`.
    """

    def __init__(
        self,
        redis_url: str,
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        before: Sequence[str] = (),
    ) -> None:
        self._port = reserve_port()
        words = ["--url", redis_url, *before, "console", "--port", str(self._port.number), *arguments]
        super().__init__(
            [sys.executable, "-m", "holdmq", *words],
            log=directory / f"console-{self._port.number}.log",
            environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
        )

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self._port.number}"

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port.number

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.spawn()
        eventually(self._answers, READY_S, f"a console that answers at {self.url}")

    def close(self) -> None:
        """Kills it if it still runs."""
        if self.running:
            self.kill()
        self._port.release()

    def _answers(self) -> bool:
        if not self.running:
            raise RuntimeError(f"the console ended with status {self.returncode}:\n{self.log_text(since_start=True)}")
        try:
            return httpx.get(f"{self.url}/login", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


class Api:
    """Asks the API of a console; keeps cookies.

    Args:
        console: whom.
        headers: that go with each request.
    """

    def __init__(self, console: ConsoleProcess, **headers: str) -> None:
        self.http = httpx.Client(base_url=console.url, headers=headers, timeout=20)

    def ask(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        """Sends a request, checks the status, and returns the JSON of the answer."""
        answer = self.http.request(method, path if path.startswith("/login") else API + path, **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status
        return answer.json() if answer.content else None

    def get(self, path: str, status: int = 200, **options: Any) -> Any:
        return self.ask("GET", path, status, **options)

    def tag(self, path: str) -> str:
        """The ETag of a resource."""
        answer = self.http.get(API + path)
        assert answer.status_code == 200, answer.text
        return str(answer.headers["etag"])

    def log_in(self, user: str, password: str = PASSWORD, status: int = 303) -> httpx.Response:
        """Logs in by the form, and takes the CSRF token of the pages into later requests."""
        self.http.headers.pop("X-CSRF-Token", None)
        answer = self.http.post("/login", data={"user": user, "password": password})
        assert answer.status_code == status, answer.text
        if status == 303:
            self.http.headers["X-CSRF-Token"] = self.csrf()
        return answer

    def csrf(self) -> str:
        """The CSRF token, as the pages have it."""
        page = self.http.get("/sessions").text
        return page.partition('name="csrf" value="')[2].partition('"')[0]


def add_user(client: redis.Redis, name: str, *roles: str, **fields: Any) -> Store:
    """Stores a user and the roles, as `holdmq-bridge auth` does."""
    store = Store(client)
    for role in roles:
        if role not in store.policy().roles:
            store.add_role(role)
    store.add_user(User(name, password=PASSWORD_HASH, roles=roles, **fields))
    return store
