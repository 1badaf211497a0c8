"""The clients of the fault test: what each of them is like, and how it comes and goes.

    connect (perhaps while the former connection is open) ──► stay, publish ──► leave: DISCONNECT, silence, takeover
       ▲                                                                                     │
       └──────────────────────────────────── away for a while ◄──────────────────────────────┘

While it is calm nobody leaves and nobody publishes; then all that is owed has to arrive.  A client that is connected
then stays connected, so that an acknowledgement that a bridge forgot is not hidden by a reconnect.
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdmq.core import mqtt
from tests.system.mqtt_client import Client, NoConnectionError
from tests.system.mqtt_connection import Message
from tests.system.mqtt_extras import KEPT, WILLS, Notes, Retained, Wills
from tests.system.mqtt_ledger import Ledger

FIRST_ID = 65_400  # packet identifiers begin near their end, at the clients and at the server
SHARED = b"$share/g/storm/#"
TOPICS_EACH = 2  # of each QoS and publisher
BURSTS = (1, 1, 1, 10)  # messages at a time: the larger ones are still on their way when a fault comes
WINDOW = 20  # messages that a publisher has on their way
PATIENCE_S = 1.0  # silence of a connection after which a client goes elsewhere
SUBACK_TIMEOUT_S = 4.0
CALM_TIMEOUT_S = 60.0
OUTLIVED_S = 4.5  # longer than a bridge's lease in this test, and the second in which the server looks
SETTLE_S = 0.5  # after everything has come: time for what should not
POLL_S = 0.02
LARGE_PAYLOAD = 20_000


@dataclass
class Habits:
    """What makes one client different from the others; times in seconds."""

    client: Client
    rng: random.Random
    stay_s: float
    away_s: float
    filters: Mapping[bytes, int] = field(default_factory=dict)
    clean: bool = False


def publisher_named(number: int, ledger: Ledger, seed: str, *, rolling: bool) -> Habits:
    """One publisher; `rolling`: it uses identifiers in turn, as half of them do in any case."""
    rng = random.Random(f"{seed}/p{number}")
    client = Client(
        f"p{number}", ledger, version=4 + number % 2, rolling_ids=rolling or number % 4 < 2, first_id=FIRST_ID
    )
    return Habits(client, rng, stay_s=3.0, away_s=0.2)


def members_of_group(ledger: Ledger, seed: str) -> list[Habits]:
    """Three who share all messages."""
    filters = {SHARED: 2}
    clients = [
        Client("g0", ledger),
        Client("g1", ledger, version=5, receive_maximum=10),
        Client("g2", ledger, version=5, answer_after_s=0.05),
    ]
    ledger.expects_together("group", [client.name for client in clients], filters)
    made = []
    for client in clients:
        rng = random.Random(f"{seed}/{client.name}")
        made.append(Habits(client, rng, stay_s=rng.uniform(0.5, 4.0), away_s=rng.uniform(0.1, 3.0), filters=filters))
    return made


def visitors(ledger: Ledger, seed: str) -> list[Habits]:
    """Two whose sessions end with their connections."""
    made = []
    for client in (Client("v0", ledger), Client("v1", ledger, version=5, receive_maximum=20)):
        filters = {b"storm/+/+/1": 2}
        ledger.expects(client.name, filters)
        rng = random.Random(f"{seed}/{client.name}")
        made.append(Habits(client, rng, stay_s=3.0, away_s=0.5, filters=filters, clean=True))
    return made


def mortals(ledger: Ledger, seed: str) -> list[Habits]:
    """Two with a will, one of each version."""
    clients = (Client("m0", ledger), Client("m1", ledger, version=5))
    return [Habits(client, random.Random(f"{seed}/{client.name}"), stay_s=1.5, away_s=0.3) for client in clients]


def subscribers_of(publishers: int, ledger: Ledger, seed: str) -> list[Habits]:
    """All subscribers: wildcards and exact filters, large and small windows, eager and slow."""
    exact = {b"storm/p%d/%d/%d" % (p, qos, k): qos for p in range(publishers) for qos in (1, 2) for k in range(2)}
    overlapping = {b"storm/p1/#": 1, b"storm/+/2/0": 2, b"storm/p1/2/0": 0}
    kinds: list[tuple[dict[bytes, int], dict[str, Any]]] = [
        ({b"storm/#": 2}, {}),
        ({b"storm/#": 2}, {"version": 5, "receive_maximum": 5, "topic_alias_maximum": 3}),
        ({b"storm/#": 1}, {"answer_after_s": 0.03}),
        ({b"storm/+/2/+": 2}, {"version": 5, "answer_after_s": 0.1, "receive_maximum": 50}),
        ({b"storm/+/1/#": 1}, {"version": 5}),
        (overlapping, {}),
        (dict(list(exact.items())[::3]), {}),
        (dict(list(exact.items())[1::3]), {"version": 5, "receive_maximum": 1}),
        ({b"storm/p0/2/0": 2, b"storm/p0/1/0": 1}, {}),
        ({b"storm/p1/2/1": 1, b"storm/p2/1/+": 2}, {"version": 5, "topic_alias_maximum": 2}),
    ]
    made = []
    for number, (filters, options) in enumerate(kinds):
        rng = random.Random(f"{seed}/s{number}")
        client = Client(f"s{number}", ledger, **options)
        ledger.expects(client.name, filters)
        made.append(Habits(client, rng, stay_s=rng.uniform(0.5, 5.0), away_s=rng.uniform(0.1, 3.0), filters=filters))
    return made


def _incoming(client: Client) -> dict[int, Message]:
    """What has come and is not complete, by identifier."""
    return {**client.session.received, **client.session.unanswered}


def _unreleased(client: Client) -> dict[int, Message]:
    """What the server has to release: it knows of it."""
    session = client.session
    return {packet_id: message for packet_id, message in session.received.items() if packet_id not in session.doubtful}


class Fleet:
    """All clients, each a task; made and used in the event loop's thread.

    Args:
        ports: of the bridges.
        ledger: the books.
        seed: what the clients decide follows from it.
        publishers: how many.
        rate: messages a second of each.
        rolling: all publishers use their identifiers in turn.
        has_group: some clients share all messages.
    """

    def __init__(
        self,
        ports: list[int],
        ledger: Ledger,
        *,
        seed: str,
        publishers: int,
        rate: float,
        rolling: bool = False,
        has_group: bool = True,
    ) -> None:
        self._rate = rate
        self._ports = ports
        self._ledger = ledger
        self.publishers = [publisher_named(number, ledger, seed, rolling=rolling) for number in range(publishers)]
        self.subscribers = subscribers_of(publishers, ledger, seed)
        self.subscribers += (members_of_group(ledger, seed) if has_group else []) + visitors(ledger, seed)
        self.wills, self.retained = Wills(ledger), Retained()
        self.mortals = mortals(ledger, seed)
        self._witness = Habits(
            Client("w0", self.wills.notes), random.Random(f"{seed}/w0"), stay_s=4.0, away_s=0.5, filters={WILLS: 1}
        )
        self._guests = 0
        self._held: dict[str, dict[int, Message]] = {}  # incoming messages, as they were at the cut
        self._calm = True
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def everybody(self) -> list[Habits]:
        """Publishers, subscribers, who has a will and who witnesses it."""
        return [*self.publishers, *self.subscribers, *self.mortals, self._witness]

    async def start(self) -> None:
        """All clients connect; the subscribers are subscribed when this returns."""
        self._tasks = [asyncio.create_task(self._live(habits), name=habits.client.name) for habits in self.everybody]
        async with asyncio.timeout(CALM_TIMEOUT_S):
            while not all(habits.client.session.subscribed >= set(habits.filters) for habits in self.everybody):
                await self._pause()

    async def storm(self) -> None:
        """The publishers begin, and everybody comes and goes."""
        self._calm = False

    async def calm(self) -> None:
        """No new messages; waits until everything published was acknowledged and delivered, or CALM_TIMEOUT_S.

        What is lacking then is told as findings.
        """
        self._calm = True
        deadline = asyncio.get_running_loop().time() + CALM_TIMEOUT_S
        while self.wills.missing() or not all(self._is_settled(habits) for habits in self.everybody):
            if asyncio.get_running_loop().time() > deadline:
                break
            await self._pause()
        await asyncio.sleep(SETTLE_S)
        for habits in self.everybody:
            self._tell_what_lacks(habits)
        for topic, numbers in self.wills.missing().items():
            self._ledger.finding(topic.decode().partition("/")[2], f"its wills {sorted(numbers)} were not published")
        await self._check_retained()

    # ---- the primary is lost for good ------------------------------------------------------------------------------

    async def cut(self) -> None:
        """All that is acknowledged by now is going to be on the replica: the caller waits for that."""
        clients = [habits.client for habits in self.everybody]
        owed = [outgoing.message for client in clients for outgoing in client.session.publishing.values()]
        self._ledger.cut(owed)
        self.retained.cut(owed)
        self.wills.cut(habits.client for habits in self.mortals)
        self._held = {client.name: _incoming(client) for client in clients}

    async def primary_died(self) -> None:
        """What was not on the replica by the cut, and was published until now, may be lost."""
        self._ledger.primary_died()
        self.retained.primary_died()
        self.wills.primary_died()

    async def replica_serves(self) -> None:
        """Nothing comes from the former primary any more."""
        self._ledger.replica_serves()
        for habits in self.everybody:
            client = habits.client
            client.session.established |= client.connected  # what came may come again, with DUP, also to a new session
            before = self._held.get(client.name, {})
            now = _incoming(client)
            client.session.doubtful |= {packet_id for packet_id in now if before.get(packet_id) != now[packet_id]}

    async def _check_retained(self) -> None:
        """A guest subscribes: it gets the last retained message of each topic, and no other."""
        self._guests += 1
        notes = Notes(self._ledger)
        guest = Client(f"guest{self._guests}", notes, version=5)
        try:
            await guest.connect(self._ports[self._guests % len(self._ports)], clean=True)
            await guest.subscribe([mqtt.Subscription(KEPT, 1)], SUBACK_TIMEOUT_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUBACK_TIMEOUT_S):
                    while self.retained.differences(notes.numbers):
                        await self._pause()
            await asyncio.sleep(SETTLE_S)
        except NoConnectionError as error:
            self._ledger.finding(guest.name, f"cannot look at the retained messages: {error}")
            return
        guest.disconnect()
        for topic, what in self.retained.differences(notes.numbers).items():
            self._ledger.finding(guest.name, f"gets of {topic.decode()} {what}")

    def _is_settled(self, habits: Habits) -> bool:
        client = habits.client
        done = client.connected and not client.session.outgoing and not client.open_zombies()
        if habits.filters and habits is not self._witness:
            done = done and not self._ledger.missing(client.name) and not _unreleased(client)
        return done and not client.session.unanswered.keys() - client.session.doubtful

    def _tell_what_lacks(self, habits: Habits) -> None:
        client, ledger = habits.client, self._ledger
        for connection in client.open_zombies():
            ledger.finding(client.name, f"its older connection to {connection.port} was not closed")
        for packet_id, outgoing in [*client.session.publishing.items(), *client.session.releasing.items()]:
            what = f"identifier {packet_id} was never acknowledged, QoS {outgoing.qos}"
            ledger.finding(client.name, what, outgoing.message)
        if habits.filters and habits is not self._witness:
            for topic, what in ledger.missing(client.name).items():
                ledger.lost(client.name, topic, what)
            for packet_id, message in _unreleased(client).items():
                ledger.finding(client.name, f"PUBREL for {packet_id} never came", message)

    async def end(self) -> None:
        """Drops all sessions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for habits in self.everybody:
            with contextlib.suppress(NoConnectionError):  # then its keys are there, and found
                await habits.client.connect(habits.rng.choice(self._ports), clean=True)
                habits.client.disconnect()

    async def close(self) -> None:
        """Closes all sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for habits in self.everybody:
            habits.client.close()
        await asyncio.sleep(POLL_S)  # the transports close in the loop's next turn

    @staticmethod
    async def _pause() -> None:
        await asyncio.sleep(POLL_S)

    # ---- one client's life -----------------------------------------------------------------------------------------

    async def _live(self, habits: Habits) -> None:
        rng, client = habits.rng, habits.client
        try:
            while True:
                try:
                    takeover = rng.random() < 0.6
                    if habits in self.mortals:
                        self.wills.write(client)
                    await client.connect(rng.choice(self._ports), takeover=takeover, clean=habits.clean)
                    if habits.clean:
                        self._ledger.joins(client.name)
                    await self._stay(habits)
                    if habits in self.mortals:
                        cut_off = not client.connected
                        self._die(habits)
                        if cut_off and not self._calm and rng.random() < 0.5:
                            await asyncio.sleep(OUTLIVED_S)  # the server finds out by itself that the bridge is gone
                except NoConnectionError as error:
                    self._ledger.note(client.name, f"no connection: {error}")
                    await asyncio.sleep(rng.uniform(0.05, 0.3))
                    continue
                if not self._calm:
                    await self._go(habits)
        except AssertionError as error:
            self._ledger.finding(client.name, f"gives up: {error}")

    async def _stay(self, habits: Habits) -> None:
        rng, client, loop = habits.rng, habits.client, asyncio.get_running_loop()
        leaves_at = loop.time() + rng.expovariate(1 / habits.stay_s)
        if not client.session.subscribed >= set(habits.filters):
            entries = [mqtt.Subscription(topic_filter, qos) for topic_filter, qos in habits.filters.items()]
            await client.subscribe(entries, SUBACK_TIMEOUT_S)
        while self._calm or loop.time() < leaves_at:
            if not client.look_alive(PATIENCE_S):
                return  # what it has sent there may still be read, behind what it sends elsewhere
            if habits in self.publishers and not self._calm:
                count = rng.choice(BURSTS)
                for _ in range(count):
                    self._publish(habits)
                await asyncio.sleep(count * rng.uniform(0.5, 1.5) / self._rate)
            else:
                await asyncio.sleep(0.1)

    def _publish(self, habits: Habits) -> None:
        client, rng = habits.client, habits.rng
        if client.session.outgoing >= WINDOW:
            return
        if rng.random() < 0.05:
            client.publish(self.retained.next_of(client), 1, retain=True)
            return
        qos = rng.choice((1, 2))
        topic = b"storm/%b/%d/%d" % (client.name.encode(), qos, rng.randrange(TOPICS_EACH))
        size = LARGE_PAYLOAD if rng.random() < 0.002 else rng.randrange(100)
        message = Message(topic, b"%d %b" % (self._ledger.next_number(topic), b"x" * size))
        client.publish(message, qos, expires=rng.random() < 0.3)

    def _die(self, habits: Habits) -> None:
        """Leaves, mostly without a word: then its will is due."""
        client = habits.client
        if self._calm or habits.rng.random() < 0.8:
            client.abandon("it dies")
            self.wills.ended(client)
        else:
            client.disconnect()

    async def _go(self, habits: Habits) -> None:
        """In order, without a word, or by being there twice."""
        rng, client = habits.rng, habits.client
        way = rng.choice(("goodbye", "silence", "takeover"))
        if way == "takeover":
            return
        if way == "goodbye":
            client.disconnect()
        else:
            client.abandon("it wants to")
        await asyncio.sleep(rng.expovariate(1 / habits.away_s))
