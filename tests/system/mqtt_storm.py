"""The fault test: clients come and go while their bridges and their server are killed and stopped.

    python -m tests.system.mqtt_storm --seconds 600            (`make storm ARGS=...`)

    phase:  storm (faults, clients come and go) ──► calm (all is up, all is delivered) ──► books and server checked

What is claimed, and checked after each phase: every message that was published was acknowledged, and reached each
subscriber: QoS 1 at least once, QoS 2 exactly once, both in the order of their publisher and topic; nothing is left in
the queues; the module's indexes are equal to a rebuild.  At the end all sessions are dropped, and no key remains.

Threads: the clients live in an event loop of their own; the faults are the main thread's, because a child process dies
with the thread that started it.  The seed gives the schedule of the faults and the decisions of the clients; the
machine's scheduler decides what they meet, so that the same seed is the same weather but not the same world.

The server syncs its append-only file before each reply: only then may a SIGKILL not take what was acknowledged.

Other tests, on the servers that --server names (`--server redis-7.0,redis-8.0`), else the embedded one:

    --failover   planned failovers every 20 s (failover_storm.py)
    --away       real clients come back after two minutes without a server (mqtt_comeback.py)
    --burst      6,000 clients connect at once (mqtt_burst.py)
    --drain      after a restart 5,000 clients get what was stored for them (mqtt_drain.py)

Over a cluster, with --cluster: cluster_storm.py.

With --lost-primary there are a replica and a Sentinel, and in each phase the primary is lost for good:

    cut ── WAIT ── replica cut off ── primary runs on alone ──✗── Sentinel promotes the replica ── storm continues
    all that is acknowledged here     what is published from the cut to here may be lost, what the replica was not
    has to be there forever           told may come again; nothing else, and nothing of it after what came later
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.support import BridgeProcess, Server, ServerKind, embedded_kinds, selected_kinds
from tests.support.eventually import eventually
from tests.system import cluster_storm, failover_storm, mqtt_burst, mqtt_comeback, mqtt_drain
from tests.system.mqtt_abuse import storm as abused
from tests.system.mqtt_faults import Fault, Target, carry_out, schedule, with_failover
from tests.system.mqtt_fleet import CALM_TIMEOUT_S, FIRST_ID, POLL_S, SHARED, Fleet
from tests.system.mqtt_ledger import Ledger
from tests.system.mqtt_pair import PROMOTE_S, Pair
from tests.system.mqtt_threads import loop_in_a_thread

SERVER_SETTINGS = [
    "appendfsync always",
    "aof-timestamp-enabled yes",
    "auto-aof-rewrite-percentage 0",
    "holdmq.session-limit 65535",
]
BRIDGE_OPTIONS = [
    *("--retry-first-s", "0.02", "--retry-max-s", "0.2", "--server-timeout-s", "2", "--lease-s", "3"),
    *("--connect-timeout-s", "3", "--shutdown-timeout-s", "2", "--sys-interval-s", "0", "--report-interval-s", "0"),
]
BRIDGES = 2
MAX_EVIDENCE = 12  # places in a file shown for one message
KEPT_KINDS = ("session", "subscriptions", "last_packet_id")  # keys of a session at rest
LAST_WORDS_S = 0.5  # until what a server said before its death has reached all clients
FAILOVER_EVERY_S = 20.0
AWAY_S = 120.0
LEFT_TIMEOUT_S = 10.0  # longer than the lease of a bridge
OWNER_KEYS = b"holdmq_owner:"  # of bridges; they expire


@dataclass(frozen=True)
class Plan:
    """How the storm is to be.

    Attributes:
        seed: everything random follows from it.
        seconds: of faults, in all.
        phases: how many times there is calm, and everything is checked.
        publishers: with QoS 1 and 2, the half of them 5.0.
        rate: messages a second of each.
        workers: processes of each bridge.
        failover: with a replica; in each phase the primary is lost for good, and the replica promoted.
    """

    seed: str
    seconds: float = 24.0
    phases: int = 2
    publishers: int = 10
    rate: float = 20.0
    workers: int = 1
    failover: bool = False

    def faults(self, phase: int) -> list[Fault]:
        """What happens in a phase."""
        seed, seconds = f"{self.seed}/{phase}", self.seconds / self.phases
        faults = schedule(seed, seconds, BRIDGES)
        return with_failover(faults, seed, seconds) if self.failover else faults


# ---- the server ------------------------------------------------------------------------------------------------------


def check_at_rest(server: Server, names: list[str], retained: Iterable[bytes], kinds: Iterable[str]) -> list[str]:
    """What is wrong with a server whose sessions have everything that they are to get."""
    client = server.client()
    wrong = [f"HOLDMQ.CHECK: {line!r}" for line in client.execute_command("HOLDMQ.CHECK")]
    for name in names:
        reply = client.execute_command("SESSION.INFO", f"{{{name}}}")
        info = {bytes(key).decode(): value for key, value in pairs_of(reply)}
        if info["messages"]:
            wrong.append(f"{name} still has {info['messages']} messages in its queue: {info}")
    allowed = {f"{{{name}}}_{kind}".encode() for name in names for kind in kinds}
    allowed |= {b"{%b}_retained" % topic for topic in retained}

    def unneeded() -> list[bytes]:
        return [key for key in remaining_keys(client) if key not in allowed and not key.startswith(OWNER_KEYS)]

    left = lasting(unneeded)  # a client that left just now has its session until its bridge has read so
    if left:
        wrong.append(f"{len(left)} keys that nobody needs: {left[:20]}")
    wrong += [f"INFO holdmq: {key} {value}" for key, value in losses(client).items()]
    return wrong


def remaining_keys(client: redis.Redis) -> list[bytes]:
    """All keys."""
    return sorted(client.scan_iter(count=1000))


def lasting(keys: Callable[[], list[bytes]]) -> list[bytes]:
    """What is still there when it had time to go."""
    deadline = time.monotonic() + LEFT_TIMEOUT_S
    while (left := keys()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def pairs_of(reply: Any) -> Iterator[tuple[bytes, Any]]:
    """A map as RESP2 and RESP3 bring it."""
    yield from reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)


def losses(client: redis.Redis) -> dict[str, int]:
    """Counters of the module that tell of messages thrown away, where they are not 0."""
    info = client.info("holdmq")
    return {key: value for key, value in info.items() if value and any(w in key for w in ("trimmed", "expired"))}


def evidence(server: Server, topic: bytes, number: int) -> list[str]:
    """What the append-only file has of a message: when it was written under which key."""
    written = re.compile(re.escape(topic) + rb".{0,60}?\b%d " % number, re.DOTALL)
    found = []
    for path in sorted((server.directory / "appendonlydir").glob("*.aof")):
        data = path.read_bytes()
        for match in list(written.finditer(data))[:MAX_EVIDENCE]:
            stamp = data.rfind(b"#TS:", 0, match.start())
            seconds = data[stamp + 4 : stamp + 14].decode() if stamp >= 0 else "?"
            found.append(
                f"{path.name} at {match.start()}, time {seconds}: ...{data[match.start() - 120 : match.end()]!r}"
            )
    return found or ["the append-only file has nothing of it"]


# ---- all together ----------------------------------------------------------------------------------------------------


class Storm:
    """Server, bridges and fleet of one run.

    Args:
        plan: how it is to be.
        directory: for logs and data; kept.
        say: prints a line.
    """

    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.pair = Pair(directory, SERVER_SETTINGS, replicated=plan.failover)
        self._directory = directory
        self._say = say
        self._bridges: list[BridgeProcess] = []

    def run(self) -> list[str]:
        """All phases; returns what was found, nothing if all is well."""
        try:
            self.pair.begin()
            options = [*BRIDGE_OPTIONS, *(["--workers", str(self.plan.workers)] if self.plan.workers > 1 else [])]
            for _ in range(BRIDGES):
                bridge = BridgeProcess(self.pair.url, self._directory, arguments=options)
                self._bridges.append(bridge)
                bridge.start()
            with loop_in_a_thread() as loop:
                self._run_fleet(loop)
            self.pair.check()
        finally:
            for bridge in self._bridges:
                bridge.close()
            self.pair.close()
        return [
            *self.ledger.findings,
            *([f"and {self.ledger.more_findings} more"] if self.ledger.more_findings else []),
        ]

    @property
    def server(self) -> Server:
        """The primary."""
        return self.pair.primary

    def _run_fleet(self, loop: asyncio.AbstractEventLoop) -> None:
        def do(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(CALM_TIMEOUT_S * 3)

        async def make() -> Fleet:
            plan, ports = self.plan, [bridge.port for bridge in self._bridges]
            # After a failover an identifier that is used again at once may be taken for a repetition.
            return Fleet(
                ports, self.ledger, seed=plan.seed, publishers=plan.publishers, rate=plan.rate, rolling=plan.failover
            )

        fleet: Fleet = do(make())
        self._begin_near_the_wrap(fleet)
        try:
            do(fleet.start())
            for phase in range(self.plan.phases):
                self._phase(phase, fleet, do)
                if self.ledger.findings:
                    return
            do(fleet.end())
            for topic in fleet.retained.last:
                self.server.client().execute_command("TOPIC.PUBLISH", topic, b"", "RETAIN")
            for bridge in self._bridges:
                bridge.stop()
            self._check_nothing_is_left()
        finally:
            do(fleet.close())

    def _begin_near_the_wrap(self, fleet: Fleet) -> None:
        """The identifiers that the server gives begin near their end."""
        client = self.server.client()
        for name in [*(habits.client.name for habits in fleet.everybody), SHARED.decode()]:
            client.set(f"{{{name}}}_last_packet_id", FIRST_ID)

    def _phase(self, phase: int, fleet: Fleet, do: Callable[[Any], Any]) -> None:
        faults = self.plan.faults(phase)
        self._say(f"phase {phase + 1} of {self.plan.phases}: {len(faults)} faults")
        for fault in faults:
            self._say(f"    {fault}")
        targets: dict[str, Target] = {f"bridge {number}": bridge for number, bridge in enumerate(self._bridges)}
        do(fleet.storm())
        begun = time.monotonic()
        stop = threading.Event()

        deeds: dict[str, Callable[[Fault], None]] = {
            "rewrite": lambda _: self._rewrite(),
            "failover": lambda fault: self._fail_over(fault.lasts_s, fleet, do),
        }
        carry_out(faults, {**targets, "server": self.pair}, deeds, self._note, stop)
        stop.wait(max(0.0, begun + self.plan.seconds / self.plan.phases - time.monotonic()))
        begun = time.monotonic()
        do(fleet.calm())
        names = [*(habits.client.name for habits in fleet.everybody), SHARED.decode()]
        for wrong in check_at_rest(self.server, names, fleet.retained.last, self._kinds_at_rest()):
            self.ledger.finding("server", wrong)
        counts = ", ".join(f"{count} {what}" for what, count in self.ledger.counts.items())
        counts += f", {fleet.wills.count} wills, {sum(fleet.retained.last.values())} retained"
        self._say(f"    calm after {time.monotonic() - begun:.1f} s: {counts}")

    def _fail_over(self, alone_s: float, fleet: Fleet, do: Callable[[Any], Any]) -> None:
        """The primary is lost for good, some time after all that was acknowledged was known to be on its replica."""
        eventually(self.pair.ready, PROMOTE_S, "a Sentinel that knows the replica")
        do(fleet.cut())
        self.pair.confirm()
        self.pair.lose(alone_s)
        do(fleet.primary_died())
        time.sleep(LAST_WORDS_S)
        do(fleet.replica_serves())
        self.pair.promote()
        self._note("the replica is the primary")

    def _kinds_at_rest(self) -> tuple[str, ...]:
        # A PUBREL that only the former primary had leaves an identifier behind.
        return (*KEPT_KINDS, "received") if self.plan.failover else KEPT_KINDS

    def _check_nothing_is_left(self) -> None:
        client = self.server.client()
        left = lasting(lambda: remaining_keys(client))
        wrong = [f"HOLDMQ.CHECK: {line!r}" for line in client.execute_command("HOLDMQ.CHECK")]
        wrong += [f"{len(left)} keys are left: {left[:20]}"] if left else []
        for text in wrong:
            self.ledger.finding("server", text)

    def _rewrite(self) -> None:
        with contextlib.suppress(redis.ResponseError):  # one is under way
            self.server.client().bgrewriteaof()

    def _note(self, what: str) -> None:
        self.ledger.note("faults", what)


Say = Callable[[str], None]
SERVERS = "HOLDMQ_TEST_SERVERS"


def _failovers(kind: ServerKind, directory: Path, seconds: float, say: Say) -> list[str]:
    failovers = max(1, round(seconds / FAILOVER_EVERY_S))
    return failover_storm.run(kind, directory, failovers=failovers, pause_s=FAILOVER_EVERY_S, say=say)


OTHERS: dict[str, tuple[str, Callable[[ServerKind, Path, float, Say], list[str]]]] = {
    "failover": ("planned failovers instead, one every 20 s", _failovers),
    "away": (
        "no storm: real clients, and a server that is away for 120 s",
        lambda kind, directory, _, say: mqtt_comeback.run(kind, directory, AWAY_S, say),
    ),
    "burst": (
        "no storm: 6,000 clients connect at once, 1,000 of them MQTT.js",
        lambda kind, directory, _, say: mqtt_burst.run(kind, directory, mqtt_burst.COUNTS, (), say),
    ),
    "drain": (
        "no storm: 5,000 clients get 20 messages each after a restart",
        lambda kind, directory, _, say: mqtt_drain.run(kind, directory, say),
    ),
}
"""What else can be asked for, in place of the storm."""


def _others(asked: list[str], directory: Path, seconds: float, say: Say) -> list[str]:
    """Runs what was asked for on each server."""
    kinds = selected_kinds() if os.environ.get(SERVERS) else embedded_kinds()
    for kind in kinds:
        kind.command()  # before anything runs
    found = []
    for name in asked:
        for kind in kinds:
            say(f"{name} on {kind.name}")
            folder = directory / f"{name}-{kind.name}"
            folder.mkdir(parents=True, exist_ok=True)
            found += [f"{name} on {kind.name}: {what}" for what in OTHERS[name][1](kind, folder, seconds, say)]
    return found


def _named(options: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in options)


def main() -> int:
    """The long run; status 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.mqtt_storm", description=str(__doc__).split("\n")[0])
    parser.add_argument("--seed", default="", help="a number or word; a new one is made if it is missing")
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults, in all (600)")
    parser.add_argument("--phase-seconds", type=float, default=30.0, help="between two times of calm (30)")
    parser.add_argument("--rate", type=float, default=Plan.rate, help="messages a second of each publisher (20)")
    parser.add_argument("--publishers", type=int, default=Plan.publishers, help="how many (10)")
    parser.add_argument("--directory", type=Path, help="for logs and data (a new one, kept if something is found)")
    parser.add_argument("--workers", type=int, default=Plan.workers, help="processes of each bridge (1)")
    parser.add_argument(
        "--lost-primary", action="store_true", help="in each phase the primary is lost, its replica promoted"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="three primaries with replicas instead; slots move, nodes are replaced"
    )
    parser.add_argument(
        "--abuse", action="store_true", help="no faults: a quiet pair beside clients that do their worst"
    )
    for name, (help_text, _) in OTHERS.items():
        parser.add_argument(f"--{name}", dest="others", action="append_const", const=name, default=[], help=help_text)
    parser.add_argument("--server", help=f"names of servers, separated by commas; only with {_named(OTHERS)}")
    given = parser.parse_args()
    if given.server and not given.others:
        parser.error(f"--server: expected together with {_named(OTHERS)}")
    if given.server:
        os.environ[SERVERS] = given.server
    seed = given.seed or str(random.SystemRandom().randrange(1_000_000))
    phases = max(1, round(given.seconds / given.phase_seconds))
    plan = Plan(seed, given.seconds, phases, given.publishers, given.rate, given.workers, given.lost_primary)
    directory = given.directory or Path(tempfile.mkdtemp(prefix="storm-"))
    directory.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"seed {seed}, {given.seconds:g} s, logs and data in {directory}\n")

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    if given.abuse:
        found = abused(directory, given.seconds, say)
        say("\n".join(found) if found else "the quiet pair stayed quick and lost nothing")
        return 1 if found else 0
    if given.cluster:
        wanted = cluster_storm.Plan(seed, given.seconds, phases, given.publishers, given.rate)
        found = cluster_storm.ClusterStorm(wanted, directory, say).run()
        say("\n".join(found) if found else "nothing was lost or out of order")
        return 1 if found else 0
    others = given.others
    found = _others(others, directory, given.seconds, say) if others else Storm(plan, directory, say).run()
    say("\n".join(found) if found else "nothing was lost, doubled or out of order")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
