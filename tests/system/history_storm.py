"""A storm over history: writers, readers, kills, failovers, clock steps, new pattern sets and trimming, from one seed.

One thread does one step after the other, so what a step means is known; what the server does meanwhile is not.

    python -m tests.system.history_storm --seconds 600 [--seed N]        the long form (`make history-storm`)

What is checked, of each reader when all has calmed down:
    1. Per topic every message is there once, in the order of publishing, however often its writer had to repeat it.
    2. Each reader was given, of what is there, everything that its filter matches, once, in the order of each shard,
       but for what was trimmed before it came there; `missed` says how many numbers those were, also where it had read
       numbers that were lost with a primary and given again.
    3. Numbers and ids rise together, whatever the clock did.
    4. The module's indexes, and the posting lists of every epoch, are what the keys say (HOLDMQ.CHECK, HISTORY.CHECK).
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.module.history_support import Entry, check_all, facts, read_range, replay, store, trim
from tests.module.sessions_support import matches
from tests.support import Clock, Server, eventually
from tests.support.servers import KINDS, ServerKind

NAME = "s"
SHARDS = 2
FILTERS = ("#", "d/+/t", "d/3/#", "+/1/+", "d/2/p", "#")
SETS = ("#", "#\nd/+/p\nd/+/t", "#\nd/+3/#2", "#\nd/1/t\nd/+/+")
STEPS = {"write": 30, "read": 25, "catch_up": 5, "kill": 2, "fail_over": 2, "step_clock": 4, "switch": 3, "trim": 4}
STEPS |= {"pause": 1}
TRIES = 200
LONGEST_STEP_US = 3_600_000_000


@dataclass
class Reader:
    """Who goes through everything that a filter matches."""

    filter: str
    cursor: bytes | None = None
    missed: int = 0
    seen: list[Entry] = field(default_factory=list)


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
        self._folder = folder
        self._kind = kind
        self._note = note
        self._clock = Clock(folder)
        self._servers: list[Server] = []
        self._written: dict[str, int] = {}  # messages of a topic so far; those up to _kept are on both servers
        self._kept: dict[str, int] = {}
        self._gone: dict[tuple[int, int], Entry] = {}
        self._trimmed = [0] * SHARDS
        self._generation = 1
        self.readers = [Reader(one) for one in FILTERS]
        self._primary = self._start(None)
        self._client = self._primary.client()
        store(self._client, NAME, "#", shards=SHARDS, bytes=8 * SHARDS * 20_000, holdbytes=2**40, age=0)
        self._client.execute_command("HISTORY.HOLD", NAME, "storm")  # what is trimmed is seen before
        self._replica = self._start(self._primary)

    def _start(self, replica_of: Server | None) -> Server:
        folder = self._folder / f"server-{len(self._servers)}"
        config = ["appendfsync always"]
        server = Server(
            self._kind, folder, aof=True, config=config, replica_of=replica_of, environment=self._clock.environment
        )
        self._servers.append(server)
        server.start()
        return server

    def run(self, seconds: float) -> None:
        """Storm, then check.

        Raises:
            AssertionError: something is not as it must be.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            (step,) = self._random.choices(list(STEPS), list(STEPS.values()))
            getattr(self, "_" + step)()
        self._calm()

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
        with client.pipeline(transaction=False) as pipe:
            for topic, number in chosen:
                pipe.execute_command("HISTORY.APPEND", NAME, topic, f"{number}", "PRODUCER", topic, 1, number + 1)
            pipe.execute()

    def _repeat(self) -> None:
        """All that is not known to be on both servers: what is there is not stored again."""
        for topic, written in self._written.items():
            kept = self._kept.get(topic, 0)
            self._append(self._client, [(topic, number) for number in range(kept, written)])
        assert self._client.wait(1, 10_000) >= 1
        self._kept.update(self._written)

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

    # ---- harm --------------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        """In the middle of a pipeline; with `appendfsync always` nothing is lost that was answered."""
        chosen = self._commands()
        self._note("kill")
        doomed = self._primary.client()
        killer = threading.Timer(self._random.random() * 0.02, self._primary.kill)
        killer.start()
        try:
            self._append(doomed, chosen)
        except redis.ConnectionError:
            pass
        finally:
            killer.join()
        self._primary.restart()
        self._client = self._primary.client()
        self._follow()
        self._repeat()

    def _follow(self) -> None:
        eventually(
            lambda: self._replica.client().info("replication")["master_link_status"] == "up",
            20,
            "a replica that follows",
        )

    def _fail_over(self) -> None:
        """The primary is lost for good, and with it what the replica had not been told."""
        self._note("fail over")
        self._repeat()
        self._replica.pause()
        for _ in range(self._random.randrange(4)):
            self._append(self._client, self._commands())
            self._catch_up() if self._random.random() < 0.5 else self._read()
        self._primary.kill()
        self._replica.resume()
        self._primary = self._replica
        self._primary.replica_of = None
        self._client = self._primary.client()
        self._client.replicaof("NO", "ONE")
        self._client.config_rewrite()
        self._replica = self._start(self._primary)
        for _ in range(self._random.randrange(3)):
            self._read()
        self._repeat()

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
        self._generation += 1
        text = f"holdmq-patterns 1 levels=8\n{self._random.choice(SETS)}\n"
        self._note(f"generation {self._generation}")
        for step in (("PREPARE", NAME, self._generation, text), ("COMMIT", NAME, self._generation)):
            assert self._client.execute_command("HISTORY.PATTERNS", *step) == b"OK"
        assert self._client.wait(1, 10_000) >= 1

    def _trim(self) -> None:
        """What all servers have."""
        self._repeat()
        shard = self._random.randrange(SHARDS)
        last = int(facts(self._client, NAME, shard=shard)["shard"][0]["last"])
        to = self._random.randrange(self._trimmed[shard], last + 1)
        if to == self._trimmed[shard]:
            return
        self._note(f"trim shard {shard} to {to} of {last}")
        for entry in self._range(shard, self._trimmed[shard] + 1, to):
            self._gone[shard, entry.sequence] = entry
        self._client.execute_command("HISTORY.HOLD", NAME, "storm", shard, to)
        assert trim(self._client, NAME, shard, to) == to + 1
        self._trimmed[shard] = to
        assert self._client.wait(1, 10_000) >= 1

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
        there = dict(self._gone)
        for shard in range(SHARDS):
            last = int(facts(self._client, NAME, shard=shard)["shard"][0]["last"])
            for entry in self._range(shard, self._trimmed[shard] + 1, last):
                there[shard, entry.sequence] = entry
        self._check_topics(there)
        for reader in self.readers:
            self._check_reader(reader, there)
        assert self._client.execute_command("HOLDMQ.CHECK") == []
        assert check_all(self._client) == []
        for server in self._servers:
            server.check()

    def _check_topics(self, there: dict[tuple[int, int], Entry]) -> None:
        found: dict[str, list[int]] = {}
        before: dict[int, Entry] = {}
        for (shard, sequence), entry in sorted(there.items()):
            name, number = entry.record.split(b" ")
            found.setdefault(name.decode(), []).append(int(number))
            if shard in before:
                assert sequence == before[shard].sequence + 1, "numbers have a hole"
                assert entry.time_us > before[shard].time_us, "ids do not rise"
            before[shard] = entry
        for topic, written in self._written.items():
            assert found.get(topic, []) == list(range(written)), f"messages of {topic}"

    def _check_reader(self, reader: Reader, there: dict[tuple[int, int], Entry]) -> None:
        seen: dict[int, list[int]] = {}
        for entry in reader.seen:
            is_there = there.get((entry.shard, entry.sequence))
            if is_there == entry:  # else it was lost since
                seen.setdefault(entry.shard, []).append(entry.sequence)
        absent = 0
        for shard in range(SHARDS):
            wanted = [
                sequence
                for (of, sequence), entry in sorted(there.items())
                if of == shard and matches(reader.filter, entry.record.split(b" ")[0].decode())
            ]
            given = seen.get(shard, [])
            assert given == sorted(set(given)), f"{reader.filter}: twice, or out of order in shard {shard}"
            assert set(given) <= set(wanted)
            lacking = sorted(set(wanted) - set(given))
            assert not lacking or lacking[-1] <= self._trimmed[shard], f"{reader.filter}: {lacking[-5:]} never came"
            absent += len(lacking)
        said = f"{reader.filter}: {absent} did not come, {reader.missed} are said to be missed"
        assert absent == reader.missed if reader.filter == "#" else absent <= reader.missed, said


def storm(seed: str, seconds: float, kind: ServerKind, note: Callable[[str], None]) -> None:
    """One storm.

    Raises:
        AssertionError: it found something.
    """
    with tempfile.TemporaryDirectory() as folder:
        one = Storm(seed, Path(folder), kind, note)
        try:
            one.run(seconds)
        finally:
            one.close()


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
        try:
            storm(seed, min(60.0, max(5.0, until - time.monotonic())), kind, lines.append)
        except BaseException:
            sys.stdout.write("\n".join([f"seed {seed}", *lines, ""]))
            raise
        sys.stdout.write(f"seed {seed}: {len(lines)} faults, nothing found\n")
        sys.stdout.flush()
        number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
