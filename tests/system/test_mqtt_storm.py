"""Nothing is lost, doubled or out of order while bridges and server are killed and stopped: the short form.

`make storm` is the long one.  A run that found something prints its seed: `make storm ARGS="--seed N"` is the same
weather again.
"""

import itertools
import os
import random
import threading
from pathlib import Path

import pytest

from holdmq.core import mqtt
from tests.system.mqtt_connection import Message
from tests.system.mqtt_faults import Fault, carry_out, schedule
from tests.system.mqtt_ledger import Ledger
from tests.system.mqtt_storm import Plan, Storm

SECONDS = 16.0
SEED = "HOLDMQ_STORM_SEED"


@pytest.mark.timeout(180)  # two phases of calm, each with a bound of its own
def test_nothing_is_lost_while_bridges_and_server_are_killed_and_stopped(tmp_path: Path) -> None:
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(1_000_000))
    lines = [f"seed {seed}"]
    found = Storm(Plan(seed, SECONDS), tmp_path, lines.append).run()
    assert not found, "\n".join([*lines, *found])


# ---- the books find what is wrong ------------------------------------------------------------------------------------


def ledger_with(*published: int, qos: int) -> tuple[Ledger, bytes]:
    """Books of a subscriber to a topic that has so many messages."""
    topic = b"storm/p0/%d/0" % qos
    ledger = Ledger()
    ledger.expects("s0", {b"storm/#": 2})
    for _ in published:
        ledger.next_number(topic)
    return ledger, topic


def receive(ledger: Ledger, topic: bytes, *numbers: int) -> list[str]:
    qos = int(topic.split(b"/")[2])
    for number in numbers:
        ledger.received("s0", mqtt.Publish(topic, b"%d x" % number, qos))
    return [finding.splitlines()[0] for finding in ledger.findings]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_books_miss_a_message_that_never_came(qos: int) -> None:
    ledger, topic = ledger_with(1, 2, 3, qos=qos)
    assert receive(ledger, topic, 1, 2) == []
    assert list(ledger.missing("s0")) == [topic]
    assert receive(ledger, topic, 3) == []
    assert ledger.missing("s0") == {}


@pytest.mark.parametrize("qos", [1, 2])
def test_the_books_see_a_gap_and_know_when_it_is_filled(qos: int) -> None:
    ledger, topic = ledger_with(1, 2, 3, qos=qos)
    assert receive(ledger, topic, 1, 3) == ["s0: gets 3 after 1: not in order, or some are lost"]
    assert list(ledger.missing("s0")) == [topic]
    receive(ledger, topic, 2)
    assert ledger.missing("s0") == {}


def test_the_books_allow_repetitions_with_qos_1_only() -> None:
    ledger, topic = ledger_with(1, 2, qos=1)
    assert receive(ledger, topic, 1, 2, 1, 2) == []
    assert ledger.counts["repeated"] == 2
    ledger, topic = ledger_with(1, 2, qos=2)
    assert receive(ledger, topic, 1, 2, 1) == ["s0: gets a message of QoS 2 twice"]


def test_the_books_do_not_take_what_nobody_published_or_another_qos() -> None:
    ledger, topic = ledger_with(1, qos=1)
    assert receive(ledger, topic, 1, 2) == ["s0: gets what nobody has published"]
    ledger, topic = ledger_with(1, qos=1)
    ledger.received("s0", mqtt.Publish(topic, b"1 x", 2))
    assert ledger.findings[0].startswith("s0: QoS 2, expected 1")


def test_the_books_of_a_group_want_each_message_with_one_member_in_any_order() -> None:
    ledger = Ledger()
    ledger.expects_together("group", ["g0", "g1"], {b"$share/g/storm/#": 2})
    topic = b"storm/p0/2/0"
    for _ in range(4):
        ledger.next_number(topic)
    for name, number in (("g0", 2), ("g1", 1), ("g1", 4)):
        ledger.received(name, mqtt.Publish(topic, b"%d x" % number, 2))
    assert list(ledger.missing("g0")) == list(ledger.missing("g1")) == [topic]
    ledger.received("g0", mqtt.Publish(topic, b"3 x", 2))
    assert ledger.missing("g0") == ledger.missing("g1") == {}
    assert ledger.findings == []
    ledger.received("g0", mqtt.Publish(topic, b"4 x", 2))
    assert ledger.findings[0].startswith("g0: gets a message of QoS 2 twice")


def test_the_books_want_from_a_visitor_all_from_the_first_message_of_each_session() -> None:
    ledger, topic = ledger_with(1, 2, 3, 4, 5, 6, qos=1)
    ledger.joins("s0")
    assert receive(ledger, topic, 2, 3) == []
    ledger.joins("s0")
    assert ledger.missing("s0") == {}
    assert receive(ledger, topic, 5) == []
    assert list(ledger.missing("s0")) == [topic]
    assert receive(ledger, topic, 6) == []
    ledger.joins("s0")
    assert receive(ledger, topic, 1, 3) == ["s0: gets 3 after 1: not in order, or some are lost"]


def after_a_failover(qos: int) -> tuple[Ledger, bytes]:
    """Five published, the third not acknowledged by the cut, the last two later; two came, one of them released."""
    ledger, topic = ledger_with(1, 2, 3, qos=qos)
    receive(ledger, topic, 1, 2)
    ledger.released("s0", Message(topic, b"1 x"))
    ledger.cut([Message(topic, b"3 x")])
    ledger.next_number(topic)
    ledger.next_number(topic)
    receive(ledger, topic, 3)
    ledger.primary_died()
    ledger.replica_serves()
    ledger.next_number(topic)
    return ledger, topic


@pytest.mark.parametrize("qos", [1, 2])
def test_the_books_allow_to_be_lost_with_a_primary_what_was_not_known_to_be_on_the_replica(qos: int) -> None:
    ledger, topic = after_a_failover(qos)
    assert receive(ledger, topic, 6) == []
    assert ledger.missing("s0") == {}
    assert receive(ledger, topic, 5) == ["s0: gets what was lost with a primary, behind later messages"]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_books_want_what_was_on_the_replica_and_what_came_after_it(qos: int) -> None:
    ledger, topic = after_a_failover(qos)
    assert list(ledger.missing("s0")) == [topic]
    ledger.next_number(topic)
    assert receive(ledger, topic, 7) == ["s0: gets 7 after 3: not in order, or some are lost"]


def test_the_books_allow_qos_2_again_in_order_unless_it_was_released_before_the_cut() -> None:
    ledger, topic = after_a_failover(2)
    assert receive(ledger, topic, 2, 3) == []
    assert receive(ledger, topic, 3)[-1] == "s0: gets a message of QoS 2 again, after 3, since a primary was lost"
    assert receive(ledger, topic, 1)[-1] == "s0: gets a message of QoS 2 twice"


def test_a_finding_shows_the_life_of_its_message() -> None:
    ledger, topic = ledger_with(1, 2, qos=2)
    ledger.note("p0", "PUBLISH", message=Message(topic, b"2 x"), packet_id=7)
    ledger.note("faults", "kill server")
    ledger.note("s9", "gets it, too", message=Message(topic, b"2 x"))
    receive(ledger, topic, 1, 2, 2)
    (finding,) = ledger.findings
    assert "p0: PUBLISH storm/p0/2/0 2 (id 7)" in finding
    assert "faults: kill server" in finding
    assert "s9" not in finding


# ---- the weather -----------------------------------------------------------------------------------------------------


class Toy:
    """A process that notes what is done to it."""

    def __init__(self) -> None:
        self.deeds: list[str] = []

    def kill(self) -> None:
        self.deeds.append("kill")

    def stop(self) -> None:
        self.deeds.append("stop")

    def start(self) -> None:
        self.deeds.append("start")

    def pause(self) -> None:
        self.deeds.append("pause")

    def resume(self) -> None:
        self.deeds.append("resume")


def test_a_seed_is_a_schedule_in_which_no_process_has_two_faults_at_a_time() -> None:
    faults = schedule("7", 600.0, 2)
    assert faults == schedule("7", 600.0, 2) != schedule("8", 600.0, 2)
    assert {fault.target for fault in faults} == {"server", "bridge 0", "bridge 1"}
    assert {fault.kind for fault in faults} == {"kill", "pause", "stop", "rewrite"}
    for target in ("server", "bridge 0", "bridge 1"):
        line = [fault for fault in faults if fault.target == target]
        assert all(one.at_s + one.lasts_s < two.at_s for one, two in itertools.pairwise(line))
    assert all(fault.at_s + fault.lasts_s <= 600.01 for fault in faults)


def test_every_fault_is_taken_back() -> None:
    toys = {"server": Toy(), "bridge 0": Toy()}
    faults = [
        Fault(0.0, "server", "kill", 0.02),
        Fault(0.01, "bridge 0", "pause", 0.02),
        Fault(0.01, "server", "stop", 0.0),
    ]
    carry_out(faults, dict(toys), {}, lambda _: None, threading.Event())
    assert toys["server"].deeds == ["kill", "start", "stop", "start"]
    assert toys["bridge 0"].deeds == ["pause", "resume"]
