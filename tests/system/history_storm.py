"""A storm over history: writers, readers, kills, failovers, clock steps, new pattern sets and trimming, from one seed.

One thread does one step after the other, so what a step means is known; what the server does meanwhile is not.

    python -m tests.system.history_storm --seconds 600 [--seed N]        the long form (`make history-storm`)

What is checked, of each reader when all has calmed down:
    1. Per topic every message is there once, in the order of publishing, however often its writer had to repeat it.
    2. Each reader was given, of what is there, everything that its filter matches, once, in the order of each shard,
       but for what was trimmed before it came there; `missed` says how many numbers those were, also where it had read
       numbers that were lost with a primary and given again.
    3. Numbers and ids rise together, whatever the clock did.
    4. What comes through sessions (history_consumers.py): applications, subscriptions that become live, groups.
    5. The module's indexes, and the posting lists of every epoch, are what the keys say (HOLDMQ.CHECK, HISTORY.CHECK).
"""

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import redis

from tests.module.history_support import Entry, check_all, facts, read_range, replay, store, trim
from tests.support import Clock, Server, eventually
from tests.support.servers import KINDS, ServerKind
from tests.system.history_books import Reader, check_reader, check_topics, number_of, topic_of
from tests.system.history_consumers import Consumer, Follower, Group

NAME = "s"
SHARDS = 2
FILTERS = ("#", "d/+/t", "d/3/#", "+/1/+", "d/2/p", "#")
SETS = ("#", "#\nd/+/p\nd/+/t", "#\nd/+3/#2", "#\nd/1/t\nd/+/+")
STEPS = {"write": 30, "read": 25, "catch_up": 5, "kill": 2, "fail_over": 2, "step_clock": 4, "switch": 3, "trim": 4}
STEPS |= {"pause": 1, "consume": 12, "member": 12, "begin_anew": 1}
LONGEST_STEP_US = 3_600_000_000
PATIENCE_S = 60.0  # with replicas, on a busy machine
EPOCH_BYTES = 3000  # about a hundred messages: epochs begin in what is lost, too


class Storm:
    """The servers, their clients, and what must be there.

    Args:
        seed: of all that is chosen.
        folder: for the servers.
        kind: of server.
        note: is told each step that harms.
    """

    def __init__(self, seed: str, folder: Path, kind: ServerKind, note: Callable[[str], None]) -> None:
        self._random = random.Random(seed)
        self._order = random.Random(f"{seed}/order")  # of steps, which nothing that happens changes
        self._folder = folder
        self._kind = kind
        self._note = note
        self._clock = Clock(folder)
        self._servers: list[Server] = []
        self._written: dict[str, int] = {}  # messages of a topic so far; those up to _kept are on both servers
        self._kept: dict[str, int] = {}
        self._gone: dict[tuple[int, int], Entry] = {}
        self._gone_numbers: set[tuple[str, int]] = set()
        self._trimmed = [0] * SHARDS
        self._losses = 0
        self.readers = [Reader(one) for one in FILTERS]
        self._primary = self._start(None)
        self._client = self._primary.client(socket_timeout=PATIENCE_S)
        store(self._client, NAME, "#", shards=SHARDS, bytes=8 * SHARDS * EPOCH_BYTES, holdbytes=2**40, age=0)
        self._client.execute_command("HISTORY.HOLD", NAME, "storm")  # what is trimmed is seen before
        self._replica = self._start(self._primary)
        self.followers = [
            Follower("{all}", "#", True, self._is_gone),
            Follower("{some}", "d/+/p", True, self._is_gone),
            Follower("{live}", "d/+/p", False, self._is_gone),
            Follower("{one}", "d/3/p", False, self._is_gone),
        ]
        for follower in self.followers:
            follower.begin(self._client, 0)
        self.group = Group("d/+/p", self._is_gone)
        self.group.begin(self._client)

    def _start(self, replica_of: Server | None) -> Server:
        folder = self._folder / f"server-{len(self._servers)}"
        config = ["appendfsync always", "holdmq.session-limit 65535"]
        server = Server(
            self._kind, folder, aof=True, config=config, replica_of=replica_of, environment=self._clock.environment
        )
        self._servers.append(server)
        server.start()
        return server

    def run(self, continues: Callable[[int], bool]) -> None:
        """Storm, then check.

        Args:
            continues: is there to be another step, after so many?

        Raises:
            AssertionError: something is not as it must be.
        """
        for done in itertools.count():
            if not continues(done):
                break
            self._step(self._order, STEPS)
        self._calm()

    def figures(self) -> str:
        """What was done, for whoever reads the output."""
        return (
            f"{sum(self._written.values())} messages, {sum(self._trimmed)} trimmed, {self._losses} primaries lost, "
            f"read {sum(len(reader.seen) for reader in self.readers)}, missed {sum(r.missed for r in self.readers)}, "
            f"became live {sum(follower.handed_over for follower in self.followers)}"
        )

    def _step(self, chance: random.Random, weights: dict[str, int]) -> None:
        (step,) = chance.choices(list(weights), list(weights.values()))
        getattr(self, "_" + step)()

    def close(self) -> None:
        """End all servers."""
        for server in self._servers:
            server.close()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _commands(self) -> list[tuple[str, int]]:
        """What is written next: a topic and its number, again where a failover may have taken it."""
        topics = [f"d/{self._random.randrange(6)}/{self._random.choice('tp')}" for _ in range(4)]
        chosen: list[tuple[str, int]] = []
        for topic in topics:
            done = self._written.get(topic, 0)
            self._written[topic] = done + self._random.randrange(1, 60)
            chosen += [(topic, number) for number in range(done, self._written[topic])]
        return chosen

    def _append(self, client: redis.Redis, chosen: list[tuple[str, int]]) -> None:
        """Topics with `p` are published, to sessions, too; the others only kept."""
        with client.pipeline(transaction=False) as pipe:
            for topic, number in chosen:
                producer = ("PRODUCER", topic, 1, number + 1)
                payload = f"{number} {self._losses}"  # another one than what was lost with a primary
                if topic.endswith("p"):
                    pipe.execute_command("TOPIC.PUBLISH", topic, payload, "QOS", 1, *producer)
                else:
                    pipe.execute_command("HISTORY.APPEND", NAME, topic, payload, "QOS", 1, *producer)
            pipe.execute()

    def _repeat(self) -> None:
        """All that is not known to be on both servers: what is there is not stored again."""
        for topic, written in self._written.items():
            kept = self._kept.get(topic, 0)
            self._append(self._client, [(topic, number) for number in range(kept, written)])
        self._wait()
        self._kept.update(self._written)

    def _wait(self) -> None:
        assert self._client.wait(1, int(PATIENCE_S * 1000 / 2)) >= 1

    def _write(self) -> None:
        self._append(self._client, self._commands())
        if self._random.random() < 0.5:
            self._repeat()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self, reader: Reader | None = None) -> bool:
        """A page; true at the end."""
        reader = reader or self._random.choice(self.readers)
        count, visit = self._random.randrange(1, 400), self._random.randrange(1, 800)
        page = replay(self._client, reader.filter, store=NAME, cursor=reader.cursor, count=count, visit=visit)
        if reader.cursor is None:
            reader.missed += sum(self._trimmed)  # who begins is not told what is gone already
        reader.cursor = page.cursor
        reader.missed += page.missed
        for entry in page.entries:
            reader.seen.append(entry._replace(record=b" ".join(entry.pair)))
        return page.end

    def _catch_up(self) -> None:
        reader = self._random.choice(self.readers)
        while not self._read(reader):
            pass

    def _consume(self) -> None:
        self._random.choice(self.followers).consume(self._client, self._random)

    def _member(self) -> None:
        self.group.step(self._client, self._random)

    def _begin_anew(self) -> None:
        """From history to live once more."""
        self._random.choice(self.followers).begin(self._client, sum(self._trimmed))

    def _consumers(self) -> list[Consumer]:
        return [*self.followers, self.group]

    def _is_gone(self, topic: str, number: int) -> bool:
        return (topic, number) in self._gone_numbers

    # ---- harm --------------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        """In the middle of a pipeline; with `appendfsync always` nothing is lost that was answered."""
        chosen = self._commands()
        self._note("kill")
        doomed = self._primary.client(socket_timeout=PATIENCE_S)
        killer = threading.Timer(self._random.random() * 0.02, self._primary.kill)
        killer.start()
        try:
            self._append(doomed, chosen)
        except redis.ConnectionError:
            pass
        finally:
            killer.join()
        self._primary.restart()
        self._client = self._primary.client(socket_timeout=PATIENCE_S)
        self._follow()
        self.group.begin(self._client)
        self._repeat()

    def _follow(self) -> None:
        eventually(
            lambda: self._replica.client().info("replication")["master_link_status"] == "up",
            PATIENCE_S,
            "a replica that follows",
        )

    def _fail_over(self) -> None:
        """The primary is lost for good, and with it what the replica had not been told."""
        all_is_lost = self._random.random() < 0.7
        self._note("fail over" + (", all is lost" if all_is_lost else ""))
        self._repeat()
        promoted = self._replica.client(socket_timeout=PATIENCE_S)
        if all_is_lost:
            promoted.replicaof("NO", "ONE")
        else:  # it gets what its socket holds, or a part of it
            self._replica.pause()
        for _ in range(self._random.randrange(4)):
            self._append(self._client, self._commands())
            self._step(
                self._random,
                {"read": 1, "catch_up": 4, "consume": 1, "member": 1, "next_generation": 1, "step_clock": 1},
            )
        self._primary.kill()
        self._losses += 1
        self._replica.resume()
        self._primary = self._replica
        self._primary.replica_of = None
        self._client = promoted
        self._client.replicaof("NO", "ONE")
        self._client.config_rewrite()
        self._replica = self._start(self._primary)
        for one in self._consumers():
            one.primary_was_lost()
        self.group.begin(self._client)
        for _ in range(self._random.randrange(3)):
            self._step(self._random, {"read": 1, "consume": 1, "member": 1})
        self._repeat()
        if self._random.random() < 0.5:  # what readers have not seen of what was given again
            self._trim()

    def _pause(self) -> None:
        self._primary.pause()
        time.sleep(self._random.random() * 0.2)  # for the length of the pause
        self._primary.resume()

    def _step_clock(self) -> None:
        by_us = self._random.randrange(-LONGEST_STEP_US, LONGEST_STEP_US)
        self._note(f"clock {by_us / 1e6:+.0f} s")
        self._clock.step(by_us)

    def _switch(self) -> None:
        """To another pattern set, in the middle of whatever is read."""
        self._repeat()
        self._note(f"generation {self._next_generation()}")
        self._wait()

    def _next_generation(self) -> int:
        generation = int(self._client.execute_command("HISTORY.PATTERNS", "GET", NAME)[0]) + 1
        text = f"holdmq-patterns 1 levels=8\n{self._random.choice(SETS)}\n"
        for step in (("PREPARE", NAME, generation, text), ("COMMIT", NAME, generation)):
            assert self._client.execute_command("HISTORY.PATTERNS", *step) == b"OK"
        return generation

    def _trim(self) -> None:
        """What all servers have."""
        self._repeat()
        shard = self._random.randrange(SHARDS)
        last = int(facts(self._client, NAME, shard=shard)["shard"][0]["last"])
        to = self._trimmed[shard] + int(self._random.random() ** 3 * (last - self._trimmed[shard] + 1))  # mostly little
        if to == self._trimmed[shard]:
            return
        self._note(f"trim shard {shard} to {to} of {last}")
        for entry in self._range(shard, self._trimmed[shard] + 1, to):
            self._gone[shard, entry.sequence] = entry
            self._gone_numbers.add((topic_of(entry), number_of(entry)))
        self._client.execute_command("HISTORY.HOLD", NAME, "storm", shard, to)
        assert trim(self._client, NAME, shard, to) == to + 1
        self._trimmed[shard] = to
        self._wait()

    # ---- checking ----------------------------------------------------------------------------------------------------

    def _range(self, shard: int, begin: int, end: int) -> list[Entry]:
        entries: list[Entry] = []
        while begin <= end:
            rows = read_range(self._client, NAME, shard, begin, end, "EXPIRED")
            assert rows.missed == 0
            for sequence, time_us, topic, payload in zip(
                *(rows.columns[name] for name in ("sequence", "time", "topic", "payload")), strict=True
            ):
                entries.append(Entry(shard, sequence, time_us, topic + b" " + payload))
            begin = rows.next
        return entries

    def _calm(self) -> None:
        self._repeat()
        for reader in self.readers:
            for _ in range(100_000):
                if self._read(reader):
                    break
        for one in self._consumers():
            one.finish(self._client, self._written)
        there = dict(self._gone)
        for shard in range(SHARDS):
            last = int(facts(self._client, NAME, shard=shard)["shard"][0]["last"])
            for entry in self._range(shard, self._trimmed[shard] + 1, last):
                there[shard, entry.sequence] = entry
        check_topics(there, self._written)
        for reader in self.readers:
            check_reader(reader, there, self._trimmed)
        assert self._client.execute_command("HOLDMQ.CHECK") == []
        assert check_all(self._client) == []
        for server in self._servers:
            server.check()


def storm(
    seed: str, folder: Path, kind: ServerKind, note: Callable[[str], None], continues: Callable[[int], bool]
) -> None:
    """One storm; arguments as of Storm and its `run`.

    Raises:
        AssertionError: it found something.
    """
    one = Storm(seed, folder, kind, note)
    try:
        one.run(continues)
        note(one.figures())
    finally:
        one.close()


def is_before(ends: float, _: int) -> bool:
    """Is it not that late yet?"""
    return time.monotonic() < ends


def main() -> int:
    """Storms of a minute, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(1_000_000)))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--server", choices=[kind.name for kind in KINDS], default="valkey-9.1")
    options = parser.parse_args()
    (kind,) = (kind for kind in KINDS if kind.name == options.server)
    until, number = time.monotonic() + options.seconds, 0
    while time.monotonic() < until:
        seed = options.seed if number == 0 else f"{options.seed}.{number}"
        lines: list[str] = []
        ends = time.monotonic() + min(60.0, max(5.0, until - time.monotonic()))
        folder = Path(tempfile.mkdtemp(prefix="history-storm-"))
        try:
            storm(seed, folder, kind, lines.append, partial(is_before, ends))
        except BaseException:
            sys.stdout.write("\n".join([f"seed {seed}, files and logs in {folder}", *lines, ""]))
            raise
        shutil.rmtree(folder)
        sys.stdout.write(f"seed {seed}: {len(lines) - 1} faults, {lines[-1]}: nothing found\n")
        sys.stdout.flush()
        number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
