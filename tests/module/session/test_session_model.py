"""Random commands, expiries, crashes and reloads on a real server, compared step by step with a plain Python model.

HOLDMQ_TEST_SEED=<number printed> replays a run and looks for the shortest steps that fail (with --timeout=0);
HOLDMQ_TEST_EXAMPLES=<n> makes it longer.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdmq import core
from tests.module.sessions_support import (
    Added,
    Entry,
    Page,
    Session,
    Will,
    expire_now,
    matches,
    publish,
)
from tests.support import Server, eventually

CIRCLE = 65535
SERVER_LIMIT = 6  # of queues that TOPIC.PUBLISH fills
EXAMPLES = int(os.environ.get("HOLDMQ_TEST_EXAMPLES", "70"))
STEPS = 50
STEPS_WITHOUT_END = 15  # so that something comes together
MOST_INTERRUPTIONS = 1  # in one example: they take longer than all the rest
NO_RETAINED = 32

KEYS = ["{a}", "p:{a}"]
FILTERS = ["t/#", "t/+", "u", "+", "t/1", "$s/#"]
TOPICS = ["t", "t/1", "t/1/2", "u", "$s/x"]

QUEUE_FACTS = (b"messages", b"first_serial", b"last_serial", b"last_packet_id")

WILL = Will("t/1", b"will", 1)

keys = st.sampled_from(KEYS)
payloads_drawn = st.binary(max_size=6)
small = st.integers(1, 5)
seldom = st.sampled_from([False, False, False, True])


@dataclass
class Message:
    """A message in the queue; `live` until it expires, the reference may stay longer."""

    serial: int
    packet_id: int
    payload: bytes
    in_record: bool = False
    live: bool = True
    released: bool = False


@dataclass
class Model:
    """What a session is, without a server."""

    queue: list[Message] = field(default_factory=list)
    counter: int = 0
    serial: int = 0
    circle: int = 0  # how often the identifiers wrapped
    sent: int = 0
    subscriptions: dict[str, int] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    epoch: int = 0  # 0: not opened
    connected: bool = False
    expiry: int = 0
    will: bool = False

    @property
    def has_state(self) -> bool:
        """Whether an OPEN finds something."""
        return bool(self.epoch or self.queue or self.subscriptions)

    def add(self, payloads: list[bytes], limit: int, *, in_records: bool = False) -> Added:
        """SESSION.ADD."""
        room, expired, trimmed = self._make_room(min(len(payloads), limit), limit)
        refused = len(payloads) - room
        packet_ids = [0] * refused
        newest = self.queue[-1].serial if self.queue else 0
        self.serial = max(self.circle, circles(newest, self.counter)) * CIRCLE + self.counter
        for payload in payloads[refused:]:
            self._next_identifier()
            self.queue.append(Message(self.serial, self.counter, payload, in_records))
            packet_ids.append(self.counter)
            self.circle = max(self.circle, circles(self.serial, self.counter))
        return Added(packet_ids, self.serial, trimmed + refused, expired)

    def _make_room(self, wanted: int, limit: int) -> tuple[int, int, int]:
        """How many new messages fit, how many expired references and live messages had to go."""
        if len(self.queue) + wanted <= limit:
            return wanted, 0, 0
        before = len(self.queue)
        self.queue = [message for message in self.queue if message.live]
        expired = before - len(self.queue)
        surplus = max(0, len(self.queue) + wanted - limit)
        in_flight = [message for message in self.queue if message.serial <= self.sent]
        waiting = self.queue[len(in_flight) :]
        trimmed = min(surplus, len(waiting))
        self.queue = in_flight + waiting[trimmed:]
        return min(wanted, max(0, limit - len(self.queue))), expired, trimmed

    def _next_identifier(self) -> None:
        while True:
            self.counter = self.counter % CIRCLE + 1
            self.serial += 1
            standing = [message for message in self.queue if message.packet_id == self.counter]
            if not any(message.live for message in standing):
                self.queue = [message for message in self.queue if message not in standing]
                return

    def page(self, after: int, count: int, size: int | None, up_to: int | None = None) -> Page:
        """A page of the queue; references of expired messages on the way are dropped."""
        found: list[Entry] = []
        gone: list[Message] = []
        more = used = 0
        for message in self.queue:
            if message.serial <= after or (up_to is not None and message.serial > up_to):
                continue
            full = len(found) >= count or (bool(found) and size is not None and used >= size)
            if not message.live:
                gone.append(message)
            elif full:
                more = 1
                break
            else:
                state = 2 if message.released else int(message.serial <= self.sent)
                found.append(Entry(message.serial, message.packet_id, state, message.payload))
                used += len(message.payload)
        self.queue = [message for message in self.queue if message not in gone]
        return Page(found, more, len(gone))

    def hand_out(self, count: int) -> Page:
        """The messages after those in flight."""
        page = self.page(self.sent, count, None)
        if page.entries:
            self.sent = page.serials[-1]
        return page

    def window(self, window: int) -> Page:
        """FETCH … WINDOW."""
        in_flight = sum(message.serial <= self.sent for message in self.queue)
        return self.hand_out(max(0, window - in_flight))

    def ack(self, packet_ids: list[int]) -> int:
        """SESSION.ACK."""
        before = len(self.queue)
        self.queue = [message for message in self.queue if message.packet_id not in packet_ids]
        return before - len(self.queue)

    def open(self, epoch: int, *, clean: bool, expiry: int) -> int:
        """SESSION.OPEN; whether the session was present."""
        clean = clean or (self.connected and self.expiry == 0)  # it ends with the connection that is taken over
        present = int(self.has_state and not clean)
        if clean:
            self.clear()
        elif self.connected and self.queue:
            self.sent = max(self.sent, self.queue[-1].serial)
        self.epoch, self.connected, self.expiry = epoch, True, expiry
        return present

    def clear(self) -> None:
        """The session is over."""
        fresh = Model()
        self.__dict__.update(fresh.__dict__)

    def largest_qos(self, topic: str) -> int | None:
        """Of the filters that match."""
        return max((qos for text, qos in self.subscriptions.items() if matches(text, topic)), default=None)


def circles(serial: int, packet_id: int) -> int:
    """The first circle of identifiers in which this one has a serial that is not smaller."""
    return max(0, -((packet_id - serial) // CIRCLE))


def seen(page: Page) -> list[tuple[int, int, int, bytes | None]]:
    """A page with the payloads of records; those of released messages are gone."""
    return [
        (entry.serial, entry.packet_id, entry.state, None if entry.state == 2 else payload_of(entry.value))
        for entry in page.entries
    ]


def payload_of(value: bytes) -> bytes:
    """The payload of a record, or the value itself."""
    return core.Record.decode(value).payload if core.is_record(value) else value


def same(got: Page, want: Page) -> None:
    """Two pages say the same."""
    assert seen(got) == seen(want)
    assert (got.more, got.expired) == (want.more, want.expired)


def some(condition: Callable[[Model], object]) -> Callable[[Any], bool]:
    """A rule's condition: it holds for one of the sessions at least."""
    return lambda machine: any(condition(model) for model in machine.models.values())


class Machine(RuleBasedStateMachine):
    """The commands of three sessions; `server` is set by the test."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.client = self.server.client()
        self.client.flushall()
        self.models = {key: Model() for key in KEYS}
        self.interruptions = 0
        self.steps = 0  # since a session ended
        self.retained: dict[str, tuple[bytes, int]] = {}  # payload and QoS by topic

    def session(self, key: str) -> Session:
        """The commands of a session."""
        return Session(self.client, key)

    # --- The queue ---

    @rule(key=keys, count=small)
    def add_some(self, key: str, count: int) -> None:
        payloads = [b"%d" % number for number in range(count)]
        assert self.session(key).add(*payloads, limit=9) == self.models[key].add(payloads, 9)

    @rule(key=keys, payloads=st.lists(payloads_drawn, min_size=1, max_size=5), limit=st.integers(1, 8))
    def add(self, key: str, payloads: list[bytes], limit: int) -> None:
        assert self.session(key).add(*payloads, limit=limit) == self.models[key].add(payloads, limit)

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, after=st.integers(0, 12), count=small, size=st.none() | st.integers(1, 12))
    def fetch(self, key: str, after: int, count: int, size: int | None) -> None:
        model = self.models[key]
        after = max(0, model.serial - after)
        if any(message.in_record or message.released for message in model.queue):
            size = None  # the model does not know how long records are
        same(self.session(key).fetch(after=after, count=count, size=size), model.page(after, count, size))

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, window=small)
    def fetch_window(self, key: str, window: int) -> None:
        same(self.session(key).fetch(window=window), self.models[key].window(window))

    @precondition(some(lambda model: model.sent))
    @rule(key=keys)
    def fetch_in_flight(self, key: str) -> None:
        model = self.models[key]
        want = model.page(0, 100, None, up_to=model.sent)
        same(self.session(key).fetch(in_flight=True), want)

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, back=st.lists(st.integers(0, 12), min_size=1, max_size=3))
    def ack(self, key: str, back: list[int]) -> None:
        packet_ids = self.identifiers(key, back)
        assert self.session(key).ack(*packet_ids) == self.models[key].ack(packet_ids)

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, back=st.lists(st.integers(0, 12), min_size=1, max_size=3), count=small)
    def ack_next(self, key: str, back: list[int], count: int) -> None:
        packet_ids = self.identifiers(key, back)
        removed, page = self.session(key).ack_next(count, *packet_ids)
        assert removed == self.models[key].ack(packet_ids)
        same(page, self.models[key].hand_out(count))

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, back=st.integers(0, 6))
    def release(self, key: str, back: int) -> None:
        (packet_id,) = self.identifiers(key, [back])
        released = [message for message in self.models[key].queue if message.packet_id == packet_id and message.live]
        assert self.session(key).release(packet_id) == len(released)
        for message in released:
            message.released = True

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, back=st.integers(0, 6))
    def note_as_sent(self, key: str, back: int) -> None:
        model = self.models[key]
        if model.queue:
            serial = max(0, model.serial - back)
            self.session(key).sent(serial)
            model.sent = max(model.sent, serial)

    @rule(key=keys, packet_id=st.integers(1, 3), complete=st.booleans())
    def receive_or_complete(self, key: str, packet_id: int, complete: bool) -> None:
        received = self.models[key].received
        if complete:
            assert self.session(key).complete(packet_id) == (packet_id in received)
            received.discard(packet_id)
        else:
            assert self.session(key).receive(packet_id) == (packet_id not in received)
            received.add(packet_id)

    def identifiers(self, key: str, back: list[int]) -> list[int]:
        """Identifiers counted back from the one handed out last; some are not in use."""
        return [(self.models[key].counter - distance - 1) % CIRCLE + 1 for distance in back]

    # --- The session ---

    @rule(key=keys, clean=seldom, expiry=st.integers(0, 3), will=seldom)
    def open(self, key: str, clean: bool, expiry: int, will: bool) -> None:
        model = self.models[key]
        opened = self.session(key).open(clean=clean, expiry=1000 * expiry, will=WILL if will else None)
        assert opened.epoch > model.epoch
        former_will = model.will
        assert opened.present == model.open(opened.epoch, clean=clean, expiry=1000 * expiry)
        if former_will:  # it has no delay, so its connection stood
            self.publish_will()
        model.will = will

    @precondition(some(lambda model: model.epoch))
    @rule(key=keys, lost=st.booleans())
    def close(self, key: str, lost: bool) -> None:
        model = self.models[key]
        if not model.epoch:
            return
        self.session(key).close(model.epoch, will=lost)
        will, model.will, model.connected = model.will, False, False
        if model.expiry == 0:
            model.clear()
        if will and lost:
            self.publish_will()

    # --- Topics ---

    @rule(key=keys, filters=st.dictionaries(st.sampled_from(FILTERS), st.integers(0, 2), min_size=1, max_size=3))
    def subscribe(self, key: str, filters: dict[str, int]) -> None:
        model = self.models[key]
        want = [int(text not in model.subscriptions) for text in filters]
        pairs = [(text, qos | NO_RETAINED) for text, qos in filters.items()]
        assert self.session(key).subscribe(*pairs) == want
        model.subscriptions.update(filters)

    @rule(key=keys, topic=st.sampled_from(TOPICS), qos=st.integers(0, 2))
    def subscribe_to_what_is_retained(self, key: str, topic: str, qos: int) -> None:
        model = self.models[key]
        payload, kept_qos = self.retained.get(topic, (b"", 0))
        if payload and not min(qos, kept_qos):
            return  # it waits in the queue, or for the client's return: test_qos0.py, test_retained_cursors.py
        assert self.session(key).subscribe((topic, qos)) == [int(topic not in model.subscriptions)]
        model.subscriptions[topic] = qos
        if min(qos, kept_qos):
            model.add([payload], CIRCLE, in_records=True)  # whatever the queue's limit is

    @rule(key=keys, filters=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3))
    def unsubscribe(self, key: str, filters: list[str]) -> None:
        model = self.models[key]
        want = [int(model.subscriptions.pop(text, None) is not None) for text in filters]
        assert self.session(key).unsubscribe(*filters) == want

    @rule(topic=st.sampled_from(TOPICS), payload=payloads_drawn, qos=st.integers(0, 2), retain=st.booleans())
    def publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        reached = self.route(topic, payload, qos)
        if retain:
            self.retained[topic] = payload, qos if payload else 0
        assert publish(self.client, topic, payload, qos=qos, retain=retain) == reached

    @rule(topic=st.sampled_from(TOPICS), payload=payloads_drawn, packet_id=st.integers(1, 3))
    def publish_once(self, topic: str, payload: bytes, packet_id: int) -> None:
        received = self.models["{a}"].received
        want = -1 if packet_id in received else self.route(topic, payload, 2)
        received.add(packet_id)
        assert publish(self.client, topic, payload, qos=2, publisher="a", packet=packet_id) == want

    def publish_will(self) -> None:
        """What a will does to the models."""
        self.route(WILL.topic, b"will", WILL.qos)

    def route(self, topic: str, payload: bytes, qos: int) -> int:
        """What a publish does to the models; how many it reached."""
        reached = 0
        for model in self.models.values():
            if min(qos, model.largest_qos(topic) or 0):
                reached += model.add([payload], SERVER_LIMIT, in_records=True).packet_ids != [0]
        return reached

    # --- Time, crashes, other people ---

    @precondition(some(lambda model: model.queue))
    @rule(key=keys, which=st.sets(st.integers(0, 8), min_size=1, max_size=3))
    def let_messages_expire(self, key: str, which: set[int]) -> None:
        live = [message for message in self.models[key].queue if message.live]
        for message in [live[place] for place in which if place < len(live)]:
            self.session(key).expire_message(message.packet_id)
            message.live = False

    @precondition(lambda self: self.steps > STEPS_WITHOUT_END)
    @rule(key=keys, drop=st.booleans())
    def let_the_session_end(self, key: str, drop: bool) -> None:
        self.steps = 0
        session = self.session(key)
        if drop:
            assert session.drop() == len(self.models[key].queue)
            will = self.models[key].will
            self.models[key].clear()
            if will:
                self.publish_will()
            return
        for suffix in ("session", "subscriptions", "received", "messages"):
            if self.client.exists(session.name(suffix)):
                expire_now(self.client, session.name(suffix))
        if self.models[key].queue:  # what is left is swept away, the counter at the end
            eventually(lambda: not self.client.exists(session.name("last_packet_id")), what="the end of the sweep")
        self.client.delete("no such key", *session.keys())
        self.models[key].clear()

    @precondition(some(lambda model: model.counter == 0 and not model.epoch and not model.queue))
    @rule(last=st.integers(65530, 65535))
    def begin_near_the_end_of_the_identifiers(self, last: int) -> None:
        for key, model in self.models.items():
            if model.counter == 0 and not model.epoch and not model.queue:
                self.client.set(key + "_last_packet_id", last)
                model.counter = model.serial = last
                return

    @precondition(some(lambda model: model.counter > 5 and model.queue))
    @rule(key=keys, back=st.integers(1, 5))
    def set_the_counter_back_by_hand(self, key: str, back: int) -> None:
        model = self.models[key]
        if model.counter > back and model.queue:
            model.counter -= back
            self.client.set(f"{key}_last_packet_id", model.counter, keepttl=True)

    @precondition(lambda self: self.interruptions < MOST_INTERRUPTIONS)
    @rule()
    def reload(self) -> None:
        self.interruptions += 1
        self.client.execute_command("DEBUG", "RELOAD")

    @precondition(lambda self: self.interruptions < MOST_INTERRUPTIONS)
    @rule()
    def crash(self) -> None:
        self.interruptions += 1
        self.server.kill()
        self.server.restart()
        self.client = self.server.client()

    @precondition(lambda self: self.models[KEYS[0]].subscriptions)
    @rule()
    def copy_subscriptions_by_hand(self) -> None:
        source, target = KEYS
        if self.client.copy(f"{source}_subscriptions", f"{target}_subscriptions", replace=True):
            self.models[target].subscriptions = dict(self.models[source].subscriptions)

    # --- What must hold at any time ---

    @invariant()
    def the_server_has_what_the_model_has(self) -> None:
        self.steps += 1
        suffixes = ("messages", "subscriptions", "session", "received")
        with self.client.pipeline(transaction=False) as pipe:
            pipe.execute_command("HOLDMQ.CHECK")
            for key in KEYS:
                pipe.execute_command("SESSION.INFO", key)
                pipe.execute_command("SESSION.SUBSCRIPTIONS", key)
                pipe.zrange(f"{key}_messages", 0, -1, withscores=True)
                for suffix in suffixes:
                    pipe.ttl(f"{key}_{suffix}")
            differences, *replies = pipe.execute()
        assert differences == []
        for key, model in self.models.items():
            info, subscriptions, references, *ttls = replies[: 3 + len(suffixes)]
            del replies[: 3 + len(suffixes)]
            assert references == [(core.message_key(key, m.packet_id), m.serial) for m in model.queue]
            serials = [message.serial for message in model.queue]
            want = [len(serials), *((serials[0], serials[-1]) if serials else (0, 0)), model.counter]
            assert [info[name] for name in QUEUE_FACTS] == want
            assert (info[b"epoch"], info[b"connected"]) == (model.epoch, model.connected)
            assert subscriptions.keys() == {text.encode() for text in model.subscriptions}
            assert -1 not in ttls  # nothing is left forever

    def teardown(self) -> None:
        """The end of an example: what is queued, to the last state."""
        for key, model in self.models.items():
            same(self.session(key).fetch(count=1000), model.page(0, 1000, None))


def test_a_session_does_what_a_plain_model_does(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(aof=True, config=["appendfsync always", f"holdmq.session-limit {SERVER_LIMIT}"])
    replayed = os.environ.get("HOLDMQ_TEST_SEED")
    number = int(replayed or random.randrange(2**32))
    print(f"HOLDMQ_TEST_SEED={number}")

    class OnThisServer(Machine):
        pass

    OnThisServer.server = server
    run_state_machine_as_test(
        seed(number)(OnThisServer),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if replayed else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
