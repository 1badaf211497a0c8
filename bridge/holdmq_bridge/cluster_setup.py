"""Makes a cluster of servers that run, and changes nothing if they are one already.

    python -m holdmq_bridge.cluster_setup HOST:PORT HOST:PORT ...     primaries, then as many replicas in their order

    all answer ──► all know each other ──► slots without an owner get one ──► replicas ──► the cluster works

Invariants
 1. Each step does only what is missing. A run that was interrupted is completed by the next one.
 2. No slot is taken from a node, no data are removed, and clusters are not merged.
 3. Every wait has a bound.
"""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdmq.password import with_password

SLOTS = 16384
LEAST_PRIMARIES = 3
TIMEOUT_S = 5.0
WAIT_S = 120.0
AGAIN_S = 0.2
USAGE = "expected HOST:PORT of 3 or more primaries, then of as many replicas, in the same order"


class SetupError(Exception):
    """The cluster cannot be made. The text says why."""


@dataclass
class Member:
    """A server that is to be a node.

    Attributes:
        address: as it was given.
        client: for it alone.
        id: what it calls itself; empty: it has not answered yet.
    """

    address: str
    client: redis.Redis
    id: str = ""

    @classmethod
    def at(cls, address: str) -> "Member":
        """The server at HOST:PORT.

        Raises:
            SetupError: the address has another form.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise SetupError(f"{address!r} is no address: {USAGE}")
        retry = Retry(NoBackoff(), 0)
        times: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S, "retry": retry}
        url = with_password(f"redis://{address}")
        return cls(address, redis.Redis.from_url(url, decode_responses=True, **times))

    def ask(self, *words: str | int) -> Any:
        """A subcommand of CLUSTER."""
        return self.client.execute_command("CLUSTER", *words)

    def answers(self) -> bool:
        """Whether it does, as a node.

        Raises:
            SetupError: it is no node of a cluster.
        """
        try:
            self.id = str(self.ask("MYID"))
        except redis.ResponseError as error:
            if isinstance(error, redis.BusyLoadingError):
                raise
            raise SetupError(
                f"{self.address} is no node of a cluster ({error}): expected cluster-enabled yes"
            ) from error
        return True

    def nodes(self) -> dict[str, list[str]]:
        """The lines of CLUSTER NODES, in words, by id."""
        return {line.split()[0]: line.split() for line in str(self.ask("NODES")).splitlines()}

    def own(self) -> list[str]:
        """Its own line."""
        return self.nodes()[self.id]

    @property
    def is_primary(self) -> bool:
        """Whether it says so."""
        return "master" in self.own()[2].split(",")

    def state(self) -> dict[str, str]:
        """CLUSTER INFO."""
        return dict(line.split(":", 1) for line in str(self.ask("INFO")).split())

    def owned(self) -> dict[int, str]:
        """The owner of each slot that has one, as this node knows it."""
        found: dict[int, str] = {}
        for first, last, (_host, _port, owner, *_more), *_replicas in self.ask("SLOTS"):
            found.update(dict.fromkeys(range(int(first), int(last) + 1), str(owner)))
        return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition; a server that does not answer yet does not fulfil it.

    Raises:
        SetupError: it did not come true in time.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        last = ""
        try:
            if condition():
                return
        except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, OSError) as error:
            last = f": {error}"
        if time.monotonic() > deadline:
            raise SetupError(f"{what}: not within {WAIT_S:g} s{last}")
        time.sleep(AGAIN_S)


def ranges_of(slots: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of slots in their order."""
    found: list[tuple[int, int]] = []
    for slot in slots:
        if found and found[-1][1] == slot - 1:
            found[-1] = (found[-1][0], slot)
        else:
            found.append((slot, slot))
    return found


def is_whole(members: Sequence[Member]) -> bool:
    """Whether all are nodes of one cluster that works, and none of them is without slots and without a primary."""
    ids = {member.id for member in members}
    for member in members:
        state = member.state()
        if state["cluster_state"] != "ok" or int(state["cluster_slots_assigned"]) != SLOTS:
            return False
        if not ids <= member.nodes().keys():
            return False
    owners = set(members[0].owned().values())
    return all(member.id in owners or not member.is_primary for member in members)


def check_one_cluster(members: Sequence[Member]) -> None:
    """Refuses nodes of different clusters.

    Raises:
        SetupError: two nodes with slots do not know each other.
    """
    known = {member.id: member.nodes().keys() for member in members}
    with_slots = [member for member in members if member.owned()]
    for one in with_slots:
        for other in with_slots:
            if other.id not in known[one.id]:
                raise SetupError(
                    f"{one.address} and {other.address} belong to different clusters: expected new servers, or the "
                    "nodes of one cluster"
                )


def meet(members: Sequence[Member]) -> None:
    """Lets all know each other."""
    for number, member in enumerate(members):
        if len(member.nodes()) == 1 and member.state()["cluster_current_epoch"] == "0":
            member.ask("SET-CONFIG-EPOCH", number + 1)
    first = members[0]
    for member in members[1:]:
        if first.id not in member.nodes():
            host, _, port = first.address.rpartition(":")
            address = str(socket.getaddrinfo(host.strip("[]"), None)[0][4][0])  # names are refused
            member.ask("MEET", address, port, first.own()[1].partition("@")[2].partition(",")[0])
    ids = {member.id for member in members}
    wait_for(lambda: all(ids <= member.nodes().keys() for member in members), "nodes that know each other")


def assign_slots(primaries: Sequence[Member]) -> None:
    """Gives slots that nobody has to the primaries, each its share."""
    owned: dict[int, str] = {}
    for member in primaries:
        owned.update(member.owned())
    for number, member in enumerate(primaries):
        begin, end = number * SLOTS // len(primaries), (number + 1) * SLOTS // len(primaries)
        missing = ranges_of([slot for slot in range(begin, end) if slot not in owned])
        if missing and not member.is_primary:
            raise SetupError(f"slot {missing[0][0]} has no owner, and {member.address} is a replica")
        if missing:
            member.ask("ADDSLOTSRANGE", *(end for pair in missing for end in pair))


def add_replicas(primaries: Sequence[Member], others: Sequence[Member]) -> None:
    """Makes the others replicas, unless they are, or have slots."""
    owners = set(primaries[0].owned().values())
    for primary, member in zip(primaries, others, strict=True):
        if member.is_primary and member.id not in owners:
            wait_for(lambda member=member: bool(owners & member.nodes().keys()), "a replica that knows primaries")  # type: ignore[misc]
            to = primary.id if primary.is_primary else primary.own()[3]
            member.ask("REPLICATE", to)
    for member in others:
        wait_for(
            lambda member=member: member.is_primary or member.client.info("replication")["master_link_status"] == "up",  # type: ignore[misc]
            f"the data of its primary at {member.address}",
        )


def make(addresses: Sequence[str]) -> bool:
    """Makes the cluster. Returns whether anything was missing.

    Raises:
        SetupError: it cannot be made.
    """
    half, rest = divmod(len(addresses), 2)
    if rest or half < LEAST_PRIMARIES:
        raise SetupError(f"{len(addresses)} addresses: {USAGE}")
    members = [Member.at(address) for address in addresses]
    try:
        for member in members:
            wait_for(member.answers, f"an answer of {member.address}")
        if is_whole(members):
            return False
        check_one_cluster(members)
        meet(members)
        assign_slots(members[:half])
        wait_for(lambda: all(one.state()["cluster_state"] == "ok" for one in members), "a cluster that works")
        add_replicas(members[:half], members[half:])
        wait_for(lambda: is_whole(members), "a whole cluster")
    except (redis.RedisError, OSError) as error:
        raise SetupError(str(error)) from error
    finally:
        for member in members:
            member.client.close()
    return True


def main() -> None:
    """Makes the cluster of the servers that the arguments name."""
    try:
        made = make(sys.argv[1:])
    except (SetupError, ValueError) as error:
        sys.exit(f"holdmq: {error}")
    sys.stdout.write("the cluster is made\n" if made else "the cluster is there already\n")


if __name__ == "__main__":
    main()
