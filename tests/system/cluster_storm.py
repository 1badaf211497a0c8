"""The fault test over a cluster: nodes are killed, replaced by replicas and lose slots while clients come and go.

    python -m tests.system.mqtt_storm --cluster --seconds 600        (`make storm ARGS=--cluster`)

    three primaries with replicas ◄── two bridges ◄── publishers, subscribers, visitors, clients with wills
      kill, stop, pause, failover, lose; slots move key by key and as a whole, all at once

What is claimed, and checked after each phase, are laws 1 and 3 to 5 of docs/cluster-design.md: every message that was
acknowledged reached each subscriber, at least once, in the order of its publisher and topic; retained messages and
wills too; nothing is left in the queues; the module's indexes are equal to a rebuild; everything goes on when the nodes
are back.
QoS 2 may come twice, and there are no shared subscriptions: docs/cluster.md says so.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdmq import core
from tests.support import BridgeProcess, Server
from tests.system.cluster_places import PLACES, Mover, Places
from tests.system.mqtt_faults import Fault, Target, carry_out, kinds_of_bridges, schedule_of
from tests.system.mqtt_fleet import CALM_TIMEOUT_S, FIRST_ID, POLL_S, Fleet
from tests.system.mqtt_ledger import Ledger
from tests.system.mqtt_threads import loop_in_a_thread

BRIDGE_OPTIONS = [
    *("--allow-anonymous", "yes", "--retry-first-s", "0.02", "--retry-max-s", "0.2", "--server-timeout-s", "2"),
    *("--lease-s", "3", "--connect-timeout-s", "3", "--shutdown-timeout-s", "2"),
    *("--sys-interval-s", "0", "--report-interval-s", "0"),
]
BRIDGES = 2
NODE_KINDS = {"kill": 4, "pause": 3, "stop": 1, "failover": 3, "lose": 3}
KEPT_KINDS = ("session", "subscriptions", "last_packet_id")
# Keys of a cluster that expire by themselves: notes of publishers and of messages from outboxes, heartbeats of bridges.
NOTES = (b"}_published", b"}_epoch{")
OWNER_KEYS = b"holdmq_owner:"
LEFT_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Plan:
    """How the storm is to be; as that of one server."""

    seed: str
    seconds: float = 24.0
    phases: int = 1
    publishers: int = 8
    rate: float = 15.0

    def faults(self, phase: int) -> list[Fault]:
        """What happens in a phase."""
        kinds = {f"place {number}": NODE_KINDS for number in range(PLACES)}
        return schedule_of(f"{self.seed}/{phase}", self.seconds / self.phases, {**kinds, **kinds_of_bridges(BRIDGES)})


class ClusterStorm:
    """Cluster, bridges and fleet of one run.

    Args:
        plan: how it is to be.
        directory: for logs and data; kept.
        say: prints a line.
    """

    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.ledger = Ledger(exactly_once=False)
        self.places = Places(directory)
        self._directory = directory
        self._say = say
        self._bridges: list[BridgeProcess] = []

    def run(self) -> list[str]:
        """All phases; returns what was found, nothing if all is well."""
        try:
            self.places.begin()
            for number in range(BRIDGES):
                url = self.places.servers[number].url
                self._bridges.append(BridgeProcess(url, self._directory, arguments=BRIDGE_OPTIONS))
                self._bridges[-1].start()
            with loop_in_a_thread() as loop:
                self._run_fleet(loop)
            self.places.check()
        finally:
            for bridge in self._bridges:
                bridge.close()
            self.places.close()
        more = [f"and {self.ledger.more_findings} more"] if self.ledger.more_findings else []
        return [*self.ledger.findings, *more]

    def _run_fleet(self, loop: asyncio.AbstractEventLoop) -> None:
        def do(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(CALM_TIMEOUT_S * 3)

        async def make() -> Fleet:
            plan, ports = self.plan, [bridge.port for bridge in self._bridges]
            return Fleet(
                ports,
                self.ledger,
                seed=plan.seed,
                publishers=plan.publishers,
                rate=plan.rate,
                rolling=True,
                has_group=False,
            )

        fleet: Fleet = do(make())
        names = [habits.client.name for habits in fleet.everybody]
        for name in names:
            self._ask(name.encode(), "SET", f"{{{name}}}_last_packet_id", FIRST_ID)
        try:
            do(fleet.start())
            for phase in range(self.plan.phases):
                self._phase(phase, fleet, names, do)
                if self.ledger.findings:
                    return
            do(fleet.end())
            for topic in fleet.retained.last:
                slot = core.slot_of(b"{%b}" % topic)
                self._ask(topic, "TOPIC.PUBLISH", topic, b"", "RETAIN", "SLOTS", 1, slot, slot)
            for bridge in self._bridges:
                bridge.stop()
            self._check_keys(lambda key: False)
        finally:
            do(fleet.close())

    def _phase(self, phase: int, fleet: Fleet, names: list[str], do: Callable[[Any], Any]) -> None:
        faults = self.plan.faults(phase)
        self._say(f"phase {phase + 1} of {self.plan.phases}: {len(faults)} faults")
        for fault in faults:
            self._say(f"    {fault}")
        targets: dict[str, Target] = {f"bridge {number}": bridge for number, bridge in enumerate(self._bridges)}
        targets |= {f"place {number}": place for number, place in enumerate(self.places.places)}
        places = {f"place {number}": place for number, place in enumerate(self.places.places)}
        deeds: dict[str, Callable[[Fault], None]] = {
            "failover": lambda fault: places[fault.target].fail_over(),
            "lose": lambda fault: places[fault.target].lose(),
        }
        slots = sorted({core.slot_of(core.session_key(name.encode())) for name in names})
        mover = Mover(self.places, slots, f"{self.plan.seed}/{phase}", self._note)
        do(fleet.storm())
        mover.start()
        begun, stop = time.monotonic(), threading.Event()
        try:
            carry_out(faults, targets, deeds, self._note, stop)
            stop.wait(max(0.0, begun + self.plan.seconds / self.plan.phases - time.monotonic()))
        finally:
            mover.finish()
        begun = time.monotonic()
        do(fleet.calm())
        self._check_at_rest(names, fleet.retained.last)
        counts = ", ".join(f"{count} {what}" for what, count in self.ledger.counts.items())
        counts += f", {fleet.wills.count} wills, {sum(fleet.retained.last.values())} retained, {mover.moved} moves"
        self._say(f"    calm after {time.monotonic() - begun:.1f} s: {counts}")

    # ---- the servers -----------------------------------------------------------------------------------------------

    def _ask(self, tagged: bytes, *words: Any) -> Any:
        """A command at the node of a slot."""
        with self._node(tagged).client() as client:
            return client.execute_command(*words)

    def _node(self, tagged: bytes) -> Server:
        return self.places.owner(core.slot_of(b"{%b}" % tagged))

    def _check_at_rest(self, names: list[str], retained: Iterable[bytes]) -> None:
        for name in names:
            reply = self._ask(name.encode(), "SESSION.INFO", f"{{{name}}}")
            pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
            info = {bytes(key).decode(): value for key, value in pairs}
            if info["messages"]:
                self._finding(f"{name} still has {info['messages']} messages in its queue: {info}")
        allowed = {f"{{{name}}}_{kind}".encode() for name in names for kind in KEPT_KINDS}
        allowed |= {b"{%b}_retained" % topic for topic in retained}
        self._check_keys(lambda key: key in allowed)

    def _check_keys(self, is_needed: Callable[[bytes], bool]) -> None:
        """Says which keys are there that nobody needs, when they had time to go, and what is wrong with indexes."""
        deadline = time.monotonic() + LEFT_TIMEOUT_S
        while (left := self._unneeded(is_needed)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if left:
            self._finding(f"{len(left)} keys that nobody needs: {left[:20]}")
        for node in self.places.nodes:
            with node.client() as client:
                for line in client.execute_command("HOLDMQ.CHECK"):
                    self._finding(f"HOLDMQ.CHECK on port {node.port}: {line!r}")
                info = client.info("holdmq")
            for key, value in info.items():
                if value and any(word in key for word in ("trimmed", "expired")):
                    self._finding(f"INFO holdmq on port {node.port}: {key} {value}")

    def _unneeded(self, is_needed: Callable[[bytes], bool]) -> list[bytes]:
        found: list[bytes] = []
        for node in self.places.nodes:
            with node.client() as client:
                found += client.scan_iter(count=1000)
        lasting = [key for key in found if not key.startswith(OWNER_KEYS) and not any(note in key for note in NOTES)]
        return [key for key in lasting if not is_needed(key)]

    def _finding(self, what: str) -> None:
        self.ledger.finding("servers", what)

    def _note(self, what: str) -> None:
        self.ledger.note("faults", what)
