"""What is killed, stopped or full loses nothing that was acknowledged."""

import itertools
import threading
from collections.abc import Callable

import pytest

from tests.bridge import packets
from tests.bridge.conftest import Connect
from tests.bridge.packets import Will
from tests.bridge.talk import Talk
from tests.support import BridgeProcess, Server, eventually

MakeServer = Callable[..., Server]
MakeBridge = Callable[..., BridgeProcess]

# With everysec the server postpones writing while it fsyncs: a kill then loses what it has already replied to.
DURABLE = ["appendfsync always"]
QUICK = ["--retry-first-s", "0.02", "--retry-max-s", "0.1"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_connection_had_sent_before_it_was_taken_over_does_not_come_afterwards(
    server: Server, bridge: MakeBridge, dial: Connect, qos: int
) -> None:
    one, two = bridge(server, arguments=QUICK), bridge(server, arguments=QUICK)
    names = [f"c{number}" for number in range(10)]
    former = [dial(one.port, name, clean=False) for name in names]
    one.pause()
    for name, client in zip(names, former, strict=True):
        client.send(packets.publish(f"state/{name}", b"old", qos=qos, pid=1 if qos else 0, retain=True))
        again = dial(two.port, name, clean=False, present=True)
        again.publish(f"state/{name}", b"new", qos=1, pid=2, retain=True)
    one.resume()
    for client in former:
        client.expect_closed()
    guest = dial(two.port, "guest")
    guest.subscribe(("state/#", 0))
    assert [guest.read_publish().payload for _ in names] == [b"new"] * len(names)


class Publisher(threading.Thread):
    """Publishes the numbers from 1 on with QoS 1, a window of them at a time, and notes what was acknowledged."""

    def __init__(self, port: int, topic: str, *, window: int = 20) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._talk = Talk.connected(port)
        self._talk.timeout_s = 30.0
        self._topic = topic
        self._window = window
        self._finishing = threading.Event()

    def run(self) -> None:
        """Until `finish`."""
        try:
            for first in itertools.count(1, self._window):
                if self._finishing.is_set():
                    return
                numbers = range(first, first + self._window)
                self._talk.send(*(packets.publish(self._topic, b"%d" % n, qos=1, pid=n % 65535 + 1) for n in numbers))
                for number in numbers:
                    self._talk.expect(packets.puback(number % 65535 + 1))
                    self.acknowledged = number
        except (AssertionError, OSError) as error:
            self.error = error

    def wait_for_more(self, count: int) -> None:
        """Waits until so many more are acknowledged."""
        goal = self.acknowledged + count
        eventually(lambda: self.acknowledged >= goal or self.error is not None, 30, f"{count} more acknowledgements")

    def finish(self) -> int:
        """Stops after the present window; returns the last number acknowledged."""
        self._finishing.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        self._talk.close()
        return self.acknowledged


def read_until(receiver: Talk, last: int, got: list[int] | None = None) -> list[int]:
    """All numbers that come up to the one given, after those that came before."""
    got = [] if got is None else got
    while last not in got[-100:]:
        got.append(int(receiver.read_publish().payload))
    return got


def assert_complete(got: list[int], last: int) -> None:
    """Every number came, and each for the first time in its order; some may have come twice (QoS 1)."""
    assert list(dict.fromkeys(got)) == list(range(1, last + 1))


def test_a_killed_server_loses_nothing_that_was_acknowledged(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=QUICK)
    receiver = dial(made.port, "away", clean=False)
    receiver.subscribe(("n", 1))
    receiver.disconnect()
    publisher = Publisher(made.port, "n")
    publisher.start()
    for _ in range(2):
        publisher.wait_for_more(200)
        server.kill()
        server.restart()
    last = publisher.finish()
    assert last > 400
    receiver = dial(made.port, "away", clean=False, present=True)
    receiver.timeout_s = 30.0
    assert_complete(read_until(receiver, last), last)


def test_clients_stay_connected_while_the_server_is_killed_and_started_again(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=QUICK)
    receiver = dial(made.port, "live")
    receiver.subscribe(("n", 1))
    receiver.timeout_s = 30.0
    publisher = Publisher(made.port, "n")
    publisher.start()
    got: list[int] = []
    while len(got) < 300:
        got.append(int(receiver.read_publish().payload))
    server.kill()
    server.restart()
    while len(got) < 1000:
        got.append(int(receiver.read_publish().payload))
    last = publisher.finish()
    read_until(receiver, last, got)
    assert_complete(got, last)


def test_while_the_server_is_away_pubacks_are_held_back_and_pings_answered(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=QUICK)
    receiver, sender = dial(made.port), dial(made.port)
    receiver.subscribe(("n", 1))
    server.kill()
    receiver.expect_nothing()
    sender.send(*(packets.publish("n", b"%d" % n, qos=1, pid=n) for n in (1, 2, 3)))
    sender.expect_silence(0.3)
    server.restart()
    sender.expect(packets.puback(1), packets.puback(2), packets.puback(3))
    assert_complete(read_until(receiver, 3), 3)


def test_a_client_that_connects_while_the_server_is_away_is_served_when_it_is_back(
    fresh_server: MakeServer, bridge: MakeBridge
) -> None:
    server = fresh_server(aof=True, config=DURABLE)
    made = bridge(server, arguments=QUICK)
    server.kill()
    with Talk(made.port) as client:
        client.send(packets.connect("c1"))
        client.expect_silence(0.2)
        server.restart()
        client.expect(packets.connack())


def test_a_client_that_connects_in_vain_learns_that_the_server_is_unavailable(
    fresh_server: MakeServer, bridge: MakeBridge
) -> None:
    server = fresh_server()
    made = bridge(server, arguments=[*QUICK, "--connect-wait-s", "0.5", "--temporary-refusal", "reason_code"])
    server.kill()
    with Talk(made.port) as client:
        client.send(packets.connect("c1"))
        client.expect(packets.connack(3))
        client.expect_closed()


def test_a_client_that_connects_in_vain_is_closed_so_that_it_comes_again(
    fresh_server: MakeServer, bridge: MakeBridge
) -> None:
    server = fresh_server()
    made = bridge(server, arguments=[*QUICK, "--connect-wait-s", "0.5"])
    server.kill()
    with Talk(made.port) as client:
        client.send(packets.connect("c1"))
        client.expect_closed()


def test_a_killed_bridge_loses_nothing_and_the_client_continues_through_another(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    one, two = bridge(server), bridge(server)
    receiver = dial(one.port, "c1", clean=False)
    receiver.subscribe(("n", 1))
    publisher = Publisher(two.port, "n")
    publisher.start()
    got = [int(receiver.read_publish().payload) for _ in range(300)]
    one.kill()
    receiver.close()
    receiver = dial(two.port, "c1", clean=False, present=True)
    last = publisher.finish()
    read_until(receiver, last, got)
    assert_complete(list(dict.fromkeys(got)), last)


def test_the_wills_of_a_killed_bridge_are_published_when_its_lease_is_over(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    doomed, other = bridge(server, arguments=["--lease-s", "2"]), bridge(server)
    watcher = dial(other.port)
    watcher.subscribe(("will", 1))
    with Talk(doomed.port) as client:
        client.send(packets.connect("c1", will=Will("will", b"gone", 1)))
        client.expect(packets.connack())
        doomed.kill()
    watcher.timeout_s = 30.0
    assert watcher.read_publish().payload == b"gone"


def test_a_bridge_that_was_stopped_in_its_tracks_loses_its_clients_sessions_to_the_others(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    one, two = bridge(server), bridge(server)
    first = dial(one.port, "c1", clean=False)
    first.subscribe(("n", 1))
    one.pause()
    second = dial(two.port, "c1", clean=False, present=True)
    dial(two.port).publish("n", b"x")
    assert second.read_publish().payload == b"x"
    one.resume()
    first.expect_closed()  # the notice of the takeover came before the message
    second.expect_nothing()


def test_a_silent_server_is_given_up_and_found_again(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server()
    made = bridge(server, arguments=[*QUICK, "--server-timeout-s", "0.5"])
    client = dial(made.port)
    server.pause()
    client.send(packets.publish("a", b"x", qos=1, pid=1))
    eventually(lambda: "the server does not answer" in made.log_text(), what="the bridge's notice")
    server.resume()
    client.expect(packets.puback(1))


def test_a_full_server_delays_the_acknowledgement_until_there_is_room(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(config=["maxmemory-policy noeviction"])
    admin = server.client()
    made = bridge(server, arguments=QUICK)
    receiver, sender = dial(made.port, "c1", clean=False), dial(made.port)
    receiver.subscribe(("n", 1))
    admin.config_set("maxmemory", "1")
    sender.send(*(packets.publish("n", b"%d" % n, qos=1, pid=n) for n in (1, 2, 3)))
    sender.expect_silence(0.3)
    admin.config_set("maxmemory", "0")
    sender.expect(packets.puback(1), packets.puback(2), packets.puback(3))
    assert_complete(read_until(receiver, 3), 3)


def test_a_server_that_stays_full_ends_the_connection_without_an_acknowledgement(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(config=["maxmemory-policy noeviction"])
    made = bridge(server, arguments=[*QUICK, "--retry-total-s", "0.5"])
    sender = dial(made.port)
    receiver = dial(made.port, "c1", clean=False)
    receiver.subscribe(("n", 1))
    server.client().config_set("maxmemory", "1")
    sender.send(packets.publish("n", b"x", qos=1, pid=1))
    sender.expect_closed()
    server.client().config_set("maxmemory", "0")


def test_a_link_killed_for_its_output_buffer_is_made_again_and_loses_nothing(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(config=["client-output-buffer-limit pubsub 1mb 0 0"])
    made = bridge(server, arguments=QUICK)
    receiver = dial(made.port, "c1", clean=False)
    receiver.subscribe(("n", 1))
    receiver.timeout_s = 30.0
    admin = server.client()
    made.pause()
    count = 2000
    for number in range(1, count + 1):
        admin.execute_command("TOPIC.PUBLISH", "n", b"%d:" % number + b"x" * 10_000, "QOS", 1)
    made.resume()
    got: list[int] = []
    while not got or got[-1] < count:
        got.append(int(receiver.read_publish().payload.split(b":")[0]))
    assert_complete(got, count)
    assert "the connection to the server was lost" in made.log_text()


def test_a_server_restored_from_an_older_state_neither_hides_nor_swallows_new_messages(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(aof=False)
    made = bridge(server, arguments=QUICK)
    receiver, sender = dial(made.port, "c1", clean=False), dial(made.port, "c2", clean=False)
    receiver.subscribe(("n", 1))
    server.client().save()
    sender.publish("n", b"lost with the server")
    old = receiver.read_publish(acknowledge=False)
    server.kill()
    server.restart()
    sender.publish("n", b"new")
    receiver.send(packets.puback(old.pid))  # the server gave this identifier to the new message
    receiver.expect_closed()
    receiver = dial(made.port, "c1", clean=False, present=True)
    assert receiver.read_publish().payload == b"new"


def test_a_session_that_the_server_forgot_is_closed(
    fresh_server: MakeServer, bridge: MakeBridge, dial: Connect
) -> None:
    server = fresh_server(aof=False)
    made = bridge(server, arguments=QUICK)
    client = dial(made.port, "c1")
    server.kill()
    server.restart()
    client.expect_closed()


def test_a_graceful_stop_acknowledges_accepted_packets_and_closes_the_sessions(
    server: Server, bridge: MakeBridge, dial: Connect
) -> None:
    made, other = bridge(server), bridge(server)
    watcher = dial(other.port)
    watcher.subscribe(("will", 1), ("n", 1))
    with Talk(made.port) as client:
        client.send(packets.connect("c1", will=Will("will", b"gone", 1)))
        client.expect(packets.connack())
        client.send(packets.publish("n", b"x", qos=1, pid=1))
        assert watcher.read_publish().payload == b"x"
        assert made.stop() == 0
        client.expect(packets.puback(1))
        client.expect_closed()
    assert watcher.read_publish().payload == b"gone"
    eventually(lambda: not server.client().keys("*{c1}*"), what="no key of the clean session")


def test_a_server_without_the_module_is_named_in_the_log(fresh_server: MakeServer, bridge: MakeBridge) -> None:
    server = fresh_server(module=False)
    made = bridge(server, arguments=QUICK)
    eventually(lambda: "the module holdmq is not loaded there" in made.log_text(), what="the notice in the log")


@pytest.mark.parametrize("password", ["", "wrong"])
def test_a_wrong_password_is_named_in_the_log(fresh_server: MakeServer, bridge: MakeBridge, password: str) -> None:
    server = fresh_server(password="right")  # noqa: S106 (of a server on loopback, for the length of a test)
    url = f"redis://:{password}@127.0.0.1:{server.port}" if password else f"redis://127.0.0.1:{server.port}"
    made = bridge(url, arguments=QUICK)
    eventually(lambda: "WRONGPASS" in made.log_text() or "NOAUTH" in made.log_text(), what="the server's refusal")


def test_a_password_in_the_url_is_used(fresh_server: MakeServer, bridge: MakeBridge, dial: Connect) -> None:
    server = fresh_server(password="p@ss/word")  # noqa: S106 (of a server on loopback, for the length of a test)
    made = bridge(server)
    dial(made.port).publish("a", b"x")
