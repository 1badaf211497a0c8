"""The harness itself: what the other tests rely on."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from holdmq.server import (
    PortTakenError,
    ServerError,
    ServerNotFoundError,
    check_module,
    configuration,
    find_module,
    find_server,
    quoted,
    write_configuration,
)
from tests.support import (
    Cluster,
    Push,
    RawClient,
    ReplyError,
    SentinelProcess,
    Server,
    ServerKind,
    Status,
    eventually,
    reserve_port,
)
from tests.support.servers import selected_kinds, version_of

MakeServer = Callable[..., Server]
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def test_each_server_is_the_version_that_its_name_says(server_kind: ServerKind) -> None:
    family, version = version_of(server_kind.command())
    assert server_kind.name == f"{family}-{version[0]}.{version[1]}"


def test_a_planned_failover_that_the_sentinel_aborts_is_ordered_again(
    fresh_server: MakeServer, fresh_sentinel: Callable[[Server], SentinelProcess]
) -> None:
    primary = fresh_server(module=False)
    replica = fresh_server(module=False, replica_of=primary)
    sentinel = fresh_sentinel(primary)
    replica.pause()
    sentinel.fail_over()  # it has answered a moment ago
    eventually(lambda: "-failover-abort-" in sentinel.log_text(), 30, "a failover that is aborted")
    replica.resume()
    sentinel.fail_over_until(lambda: sentinel.names(replica), is_ordered=True, what="a failover")
    assert replica.client().role()[0] == b"master"


def test_a_killed_server_comes_back_with_what_its_aof_holds(fresh_server: MakeServer) -> None:
    server = fresh_server(aof=True, config=["appendfsync always"], module=False)
    port = server.port
    server.client().set("k", "v")
    server.kill()
    assert server.process.returncode == -signal.SIGKILL
    server.restart()
    assert server.port == port
    assert server.client().get("k") == b"v"


def test_a_stopped_server_ends_cleanly(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False)
    server.stop()
    assert server.process.returncode == 0


def test_what_config_rewrite_wrote_outlasts_a_restart(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False)
    client = server.client()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxclients", "123")
    client.config_rewrite()
    server.restart()
    assert server.client(decode_responses=True).config_get("maxclients") == {"maxclients": "123"}


def test_a_reset_leaves_nothing_of_the_test_before(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False)
    client = server.client(decode_responses=True)
    client.set("k", "v")
    before = client.config_get("maxmemory")
    client.config_set("maxmemory", "200mb")
    client.acl_setuser("somebody", enabled=True, nopass=True)
    with RawClient(server.port) as stranger:
        stranger.call("SUBSCRIBE", "ch")
        server.reset()
        stranger.wait_closed()
    client = server.client(decode_responses=True)
    assert client.dbsize() == 0
    assert client.config_get("maxmemory") == before
    assert client.acl_users() == ["default"]


def test_a_replica_follows_its_primary(fresh_server: MakeServer) -> None:
    primary = fresh_server(module=False)
    replica = fresh_server(module=False, replica_of=primary)
    primary.client().set("k", "v")
    eventually(lambda: replica.client().get("k") == b"v")


def test_a_cluster_serves_all_slots(fresh_cluster: Callable[..., Cluster]) -> None:
    cluster = fresh_cluster(3, module=False)
    with cluster.client() as client:
        for key in ("a", "b", "c", "{a}x"):
            client.set(key, key)
            assert cluster.node_of(key).client().get(key) == key.encode()


@pytest.fixture
def adopting() -> Iterator[None]:
    """Makes this process the parent of orphans, so that it can wait for them (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("adopting")
def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path, server_kind: ServerKind) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from tests.support import Server, selected_kinds\n"
        "kind = next(k for k in selected_kinds() if k.name == sys.argv[1])\n"
        "server = Server(kind, pathlib.Path(sys.argv[2]), module=False)\n"
        "server.start()\n"
        "print(server.process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, server_kind.name, str(tmp_path)],
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    pid = int(done.stdout)
    ended, status = eventually(lambda: _waited(pid), what=f"the end of process {pid}")
    assert ended == pid
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _waited(pid: int) -> tuple[int, int] | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return (ended, status) if ended else None


def test_a_server_that_cannot_start_says_why(tmp_path: Path, server_kind: ServerKind) -> None:
    server = Server(server_kind, tmp_path, module=False, config=["no-such-directive yes"])
    try:
        with pytest.raises(ServerError, match="no-such-directive"):
            server.start()
    finally:
        server.close()


def test_a_port_that_another_process_listens_on_is_distinguished(fresh_server: MakeServer, tmp_path: Path) -> None:
    first = fresh_server(module=False)
    second = Server(first.kind, tmp_path / "second", module=False)
    try:
        second.start()
        second.stop()
        write_configuration(second.process.config, [f"port {first.port}"])
        second.process.port = first.port
        with pytest.raises(PortTakenError):
            second.process.start()
    finally:
        second.close()


def test_a_report_of_a_sanitizer_in_the_log_fails_the_check(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False)
    server.check()
    with (server.directory / "server.log").open("a") as log:
        log.write("==1==ERROR: AddressSanitizer: heap-use-after-free\n")
    with pytest.raises(AssertionError, match="heap-use-after-free"):
        server.check()
    server.check()  # reported once


def test_a_server_without_the_module_is_distinguished(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False)
    with pytest.raises(ServerError, match="no HoldMQ module"):
        check_module(server.client())


def test_a_server_with_the_module_is_recognised(server: Server) -> None:
    check_module(server.client())


def test_the_shared_server_is_empty_for_each_test(client: redis.Redis) -> None:
    assert client.dbsize() == 0
    client.set("left", "behind")


test_the_shared_server_is_empty_for_each_test_again = test_the_shared_server_is_empty_for_each_test


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_raw_connection_shows_replies_in_their_order(fresh_server: MakeServer, protocol: int) -> None:
    server = fresh_server(module=False)
    with RawClient(server.port, protocol) as connection:
        connection.send_all(
            ("SET", "k", b"\x00\r\n"), ("GET", "k"), ("GET", "none"), ("INCR", "n"), ("LPUSH", "k", "x")
        )
        assert connection.read_many(4) == [Status("OK"), b"\x00\r\n", None, 1]
        assert isinstance(connection.read(), ReplyError)
        with pytest.raises(ReplyError, match="WRONGTYPE"):
            connection.call("LPUSH", "k", "x")
        connection.send_all(("SUBSCRIBE", "ch"), ("PING", "here"))
        confirmation = connection.read()
        assert confirmation == [b"subscribe", b"ch", 1]
        assert isinstance(confirmation, Push) == (protocol == 3)
        assert connection.read() == ([b"pong", b"here"] if protocol == 2 else b"here")
        assert server.client().publish("ch", "m") == 1
        assert connection.pending() == [[b"message", b"ch", b"m"]]


def test_a_reply_that_comes_in_parts_is_read_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = RawClient(listener.getsockname()[1])
        peer, _ = listener.accept()
        with peer, connection:
            peer.sendall(b"*2\r\n$3\r\nab")
            with pytest.raises(TimeoutError):
                connection.read(timeout_s=0.05)
            peer.sendall(b"c\r\n%1\r\n+k\r\n,1.5\r\n")
            assert connection.read() == [b"abc", {"k": 1.5}]


def test_no_two_reservations_get_the_same_port() -> None:
    with reserve_port() as one, reserve_port() as other:
        assert one.number != other.number
        taken = one.number
    program = "from tests.support import reserve_port; print(reserve_port().number)"
    with reserve_port() as held:
        root = Path(__file__).parents[2]
        seen = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=60, cwd=root
        ).stdout
        assert int(seen) != held.number
    with reserve_port() as again:
        assert again.number <= taken + 1000  # given back ports are used again


def test_eventually_reports_what_it_saw_last() -> None:
    with pytest.raises(AssertionError, match=r"a goat did not come true within 0\.05 s; last result: 0"):
        eventually(lambda: 0, 0.05, "a goat")

    def failing() -> bool:
        raise AssertionError("only 3 came")

    with pytest.raises(AssertionError, match="last error: only 3 came"):
        eventually(failing, 0.05)


def test_the_directives_given_again_replace_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    write_configuration(path, ["port 1", "loadmodule /a/holdmq.so x"], first=["save 60 1"])
    assert path.read_text().splitlines() == ["save 60 1", "port 1", "loadmodule /a/holdmq.so x"]
    path.write_text(path.read_text().replace("save 60 1", "save 1 1") + "loadmodule /b/other.so\n")
    write_configuration(path, ["port 2", "loadmodule /c/holdmq.so"], first=["save 60 1"])
    assert path.read_text().splitlines() == ["save 1 1", "loadmodule /b/other.so", "port 2", "loadmodule /c/holdmq.so"]


@pytest.mark.parametrize("value", ["plain", "two words", "'a \"quoted\" \\ back'", "#tab\tand\nline"])
def test_any_value_can_be_written_into_a_configuration(fresh_server: MakeServer, value: str) -> None:
    server = fresh_server(module=False, config=[f"masterauth {quoted(value)}"])
    assert server.client(decode_responses=True).config_get("masterauth") == {"masterauth": value}


def test_a_server_with_a_password_serves_those_who_know_it(fresh_server: MakeServer) -> None:
    server = fresh_server(module=False, password="a secret")  # noqa: S106 (of a server that lives for this test)
    replica = fresh_server(module=False, replica_of=server)
    with redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
    eventually(lambda: replica.client().get("k") == b"v")
    with pytest.raises(redis.AuthenticationError):
        server.client(password=None).ping()


def test_a_missing_server_or_module_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDMQ_SERVER", "/no/such/redis-server")
    with pytest.raises(ServerNotFoundError, match="HOLDMQ_SERVER"):
        find_server()
    monkeypatch.setenv("HOLDMQ_MODULE", "/no/such/holdmq.so")
    with pytest.raises(ServerNotFoundError, match="HOLDMQ_MODULE"):
        find_module()
    monkeypatch.delenv("HOLDMQ_SERVER")
    monkeypatch.setenv("HOLDMQ_TEST_SERVERS", "valkey-9.1,redis-1.0")
    with pytest.raises(ServerNotFoundError, match=r"redis-1\.0"):
        selected_kinds()


def test_another_server_takes_the_place_of_all(monkeypatch: pytest.MonkeyPatch, server_kind: ServerKind) -> None:
    (*_, binary) = server_kind.command()
    monkeypatch.setenv("HOLDMQ_SERVER", binary)
    assert [kind.name for kind in selected_kinds()] == [server_kind.name]
    assert os.fspath(find_server()) == binary


def test_a_configuration_in_another_encoding_and_a_path_in_none_are_kept_byte_by_byte(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/M\xfcnchen"
    config = tmp_path / "server.conf"
    config.write_bytes(b"# f\xfcr das Lager\nport 1\nrequirepass p\xe4ss\n")
    write_configuration(config, configuration(port=2, directory=Path(os.fsdecode(folder))))
    lines = config.read_bytes().splitlines()
    assert lines[:2] == [b"# f\xfcr das Lager", b"requirepass p\xe4ss"]
    assert b"port 2" in lines
    assert b'dir "' + folder + b'"' in lines
