"""A bridge that logs in to the server with the rights that docs/access.md gives it serves everything."""

import urllib.request
from collections.abc import Callable

import pytest
import redis

from tests.bridge import packets, packets5
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk, Talk5
from tests.module.history_support import store
from tests.support import BridgeProcess, Server, eventually
from tests.support.pages import blocks
from tests.support.ports import Port

MakeBridge = Callable[..., BridgeProcess]

NOT_AUTHORIZED = 0x87


@pytest.fixture
def login(server: Server, client: redis.Redis) -> Callable[[str], str]:
    """Defines a user as the page does; returns the URL with which a bridge logs in."""

    def define(name: str) -> str:
        lines = [line.split() for block in blocks("docs/access.md", "redis") for line in block.text.splitlines()]
        [words] = [words for words in lines if words[2] == name]
        client.execute_command(*words)
        client.acl_log_reset()
        return server.url.replace("redis://", f"redis://{name}:{words[4].removeprefix('>')}@")

    return define


def denied(client: redis.Redis, name: str) -> set[str]:
    """What was denied to the user."""
    return {str(entry["object"]) for entry in client.acl_log() if entry["username"] == name}


def page(port: Port) -> str:
    """The metrics of a bridge."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port.number}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def test_a_bridge_with_the_documented_user_is_denied_nothing(
    login: Callable[[str], str], client: redis.Redis, bridge: MakeBridge, dial: Connect, port: Port
) -> None:
    store(client, "telemetry", "t/#")
    url = login("bridge")
    one = bridge(url, arguments=["--metrics-port", str(port.number)])
    two = bridge(url)
    sender, receiver = dial(one.port, "sender"), dial(two.port, "receiver", clean=False)
    sender.publish("t/retained", b"kept", retain=True)
    receiver.subscribe(("t/#", 1), ("$share/workers/s/#", 1))
    assert receiver.read_publish().payload == b"kept"
    receiver.disconnect()
    for number in range(20):  # while it is away, of all kinds
        sender.publish("t/a", b"%d" % number, pid=number + 1)
    sender.publish("s/a", b"shared", pid=30)
    sender.send(packets.publish("t/b", b"exactly once", qos=2, pid=31))
    sender.expect(packets.pubrec(31))
    sender.send(packets.pubrel(31))
    sender.expect(packets.pubcomp(31))
    receiver = dial(two.port, "receiver", clean=False, present=True)
    got = {receiver.read_publish().payload for _ in range(22)}
    assert got == {b"%d" % number for number in range(20)} | {b"shared", b"exactly once"}
    reader = dial(one.port, "reader")
    reader.subscribe(("$replay/earliest/t/b", 1))
    assert reader.read_publish().payload == b"exactly once"
    with Talk(one.port) as mortal:
        mortal.send(packets.connect("mortal", will=Will("t/will", b"gone", 1)))
        mortal.expect(packets.connack())
    assert receiver.read_publish().payload == b"gone"
    eventually(lambda: "holdmq_bridge" in page(port), 10, "metrics")
    two.kill()  # its sessions go to the other one
    receiver = dial(one.port, "receiver", clean=False, present=True)
    sender.publish("t/c", b"after", pid=40)
    assert receiver.read_publish().payload == b"after"
    receiver.send(packets.unsubscribe(9, "t/#", "$share/workers/s/#"))
    receiver.expect(packets.unsuback(9))
    assert denied(client, "bridge") == set()


def test_a_topic_that_the_bridge_may_not_use_is_refused_to_the_client_alone(
    login: Callable[[str], str], client: redis.Redis, bridge: MakeBridge
) -> None:
    made = bridge(login("bridge-plant1"))
    with Talk5.open(made.port, "a") as one, Talk5.open(made.port, "b") as other:
        assert other.granted(("plant1/#", 1), pid=1) == [1]
        assert other.granted(("#", 1), pid=2) == [NOT_AUTHORIZED]
        assert other.granted(("$share/g/u", 1), pid=3) == [NOT_AUTHORIZED]
        with Talk5(made.port) as will:
            will.send(packets5.connect("c", will=packets.Will("w", b"gone", 1)))
            refused = will.read()
            assert (refused.kind, refused.code) == (2, NOT_AUTHORIZED)
        assert one.told("v", b"m", pid=1) == NOT_AUTHORIZED
        assert one.told("plant1/a", b"m", pid=2) == 0
        assert other.message().payload == b"m"
    assert denied(client, "bridge-plant1") == {"#", "u", "w", "v"}
