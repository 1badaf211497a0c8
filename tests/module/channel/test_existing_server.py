"""The way onto a server that an application uses: an empty policy from the first moment on, then named channels."""

from pathlib import Path

import redis

from holdmq.server import find_module
from tests.module.channels_support import MakeRaw, answers, knows_clients, stock, subscribe
from tests.support import ServerKind, Status, eventually


def test_the_module_is_loaded_into_a_running_server_with_an_empty_policy(
    server_kind: ServerKind, tmp_path: Path, raw: MakeRaw
) -> None:
    with stock(server_kind, tmp_path / "server", "enable-module-command yes") as server:
        client = server.client()
        client.rpush("jobs", "j")
        client.execute_command("MODULE", "LOADEX", str(find_module()), "CONFIG", "holdmq.policies", "")
        assert client.config_get("holdmq.policies") == {"holdmq.policies": ""}
        assert client.publish("jobs", "m") == 0
        assert client.publish("other", "m") == 0
        assert client.keys() == [b"jobs"]
        assert subscribe(raw(server), "jobs", "other") == []
        assert client.info("holdmq")["holdmq_policy_rules"] == 0


def test_clients_that_were_connected_before_are_known_when_the_module_is_loaded(
    server_kind: ServerKind, tmp_path: Path, raw: MakeRaw
) -> None:
    """What the server queues or refuses is not held, though the module has seen no MULTI, SUBSCRIBE and MONITOR."""
    with stock(server_kind, tmp_path / "server", "enable-module-command yes") as server:
        client, queues, subscriber, monitor = server.client(), raw(server), raw(server), raw(server)
        assert queues.call("MULTI") == "OK"
        assert subscribe(subscriber, "other") == []
        assert monitor.call("MONITOR") == "OK"
        client.execute_command("MODULE", "LOADEX", str(find_module()), "CONFIG", "holdmq.policies", "* hold=all")
        assert answers(queues, ["PUBLISH", "ch", "m"], ["DISCARD"]) == ["QUEUED", "OK"]
        [refusal] = answers(subscriber, ["PUBLISH", "ch", "m"])
        refused = "publish" if knows_clients(client) else "CHANNEL.PUBLISH"
        assert refusal.startswith(f"-ERR Can't execute '{refused}'")
        monitor.send("PUBLISH", "ch", "m")
        while isinstance(reply := monitor.read(), Status):
            pass
        assert str(reply).startswith("ERR Replica can't interact with the keyspace")
        assert client.keys() == []


def test_named_channels_outlast_a_restart_after_a_rewrite(server_kind: ServerKind, tmp_path: Path) -> None:
    with stock(server_kind, tmp_path / "server", "enable-module-command yes") as server:
        client = server.client()
        client.execute_command("MODULE", "LOADEX", str(find_module()), "CONFIG", "holdmq.policies", "")
        client.config_set("holdmq.policies", "orders:* ttl=86400 maxlen=1000")
        client.config_rewrite()
        server.module = True  # the file has a line for it now
        server.restart()
        eventually(lambda: answered(server.client()))
        client = server.client()
        assert client.config_get("holdmq.policies") == {"holdmq.policies": "orders:* ttl=86400 maxlen=1000"}
        client.publish("orders:1", "m")
        client.publish("jobs", "m")
        assert client.keys() == [b"holdmq:held:{orders:1}"]


def answered(client: redis.Redis) -> bool:
    return bool(client.ping())
