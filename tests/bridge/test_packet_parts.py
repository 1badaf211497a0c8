"""Packets with very many parts: refused, or dealt with in slices, so that nobody else waits for them."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import redis

from holdmq_bridge.base.command import Command
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.session.access import Verdict
from holdmq_bridge.session.actions import Actions, Authenticate, Continue, MoreWork, Opened, Phase, Send, SendCommand
from holdmq_bridge.session.session import Session
from holdmq_bridge.session.subscriptions import MOST_AT_ONCE
from tests.bridge import packets
from tests.bridge import packets5 as p
from tests.bridge.talk import Talk, Talk5
from tests.bridge.test_session import EPOCH, Rules, sent, the, told
from tests.support import BridgeProcess, Server, embedded_kinds

server_kinds = embedded_kinds  # what is tested is in the bridge

MakeBridge = Callable[..., BridgeProcess]
MEGABYTE = 1_048_576
PAIR = b"\x26" + packets.text("n") + packets.text("v")


# ---- refused ----


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE", "CONNECT", "PUBLISH"])
@pytest.mark.usefixtures("server")
def test_a_client_that_sends_too_many_parts_is_notified(broker: BridgeProcess, kind: str) -> None:
    filters = [f"{number:05}" for number in range(100_000)]
    with Talk5(broker.port) as client, Talk5.open(broker.port, "other") as other:
        if kind == "CONNECT":
            client.send(p.connect("c1", properties=PAIR * 257))
            assert client.read(2).code == 0x97
        else:
            client.send(p.connect("c1"))
            assert client.read(2).code == 0
            data = {
                "SUBSCRIBE": lambda: p.subscribe(1, *((name, 0) for name in filters)),
                "UNSUBSCRIBE": lambda: p.unsubscribe(1, *filters),
                "PUBLISH": lambda: p.publish("t", b"", properties=PAIR * 257),
            }[kind]()
            client.send(data)
            assert client.read(14).code == 0x97
        client.expect_closed()
        other.expect_nothing()


@pytest.mark.usefixtures("server")
def test_a_large_connect_is_refused_by_its_first_bytes(broker: BridgeProcess) -> None:
    whole = p.connect("c1", username="u", password=b"x" * 65_500, properties=b"\x15" + packets.text("m" * 1000))
    with Talk5(broker.port) as newer, Talk(broker.port) as older:
        newer.send(whole[:100])
        assert newer.read(2).code == 0x95
        newer.expect_closed()
        older.send(packets.connect("c1", username="u", password=b"x" * 65_535)[:100])
        older.expect_closed()


def test_half_sent_connects_leave_room_for_others(server: Server, bridge: MakeBridge) -> None:
    made = bridge(server, arguments=["--max-unread-connects", "1000000"])
    half = p.connect("c1", username="u", password=b"x" * 60_000)[:-1]
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(Talk5(made.port)).send(half)
        with Talk5.open(made.port, "good") as good:
            good.expect_nothing()
    assert "too many bytes of incomplete CONNECTs are held" in made.log_text()


# ---- allowed ----


@pytest.mark.usefixtures("server")
def test_a_thousand_filters_in_one_packet_are_subscribed_and_unsubscribed(
    broker: BridgeProcess, client: redis.Redis
) -> None:
    filters = [f"t/{number}" for number in range(1000)]
    with Talk5.open(broker.port, "c1") as device:
        assert device.granted(*((name, number % 3) for number, name in enumerate(filters))) == [
            number % 3 for number in range(1000)
        ]
        assert client.hlen("{c1}_subscriptions") == 1000
        device.send(p.unsubscribe(2, *filters[:999], "unknown"))
        assert device.read(11).codes == [0] * 999 + [0x11]
        assert client.hkeys("{c1}_subscriptions") == [b"t/999"]


class Clock:
    """Goes on by a millisecond at each look."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


@pytest.fixture
def session() -> Session:
    """One that is open, and whose time runs."""
    made = Session(Settings(), lambda _key: "owner", "attempt-1", lambda: b"auto-1", Clock())
    the(Authenticate, made.packet(packets.connect("c1")))
    opened = made.reply(told(made.authenticated(Verdict(True))), [EPOCH, 0])
    assert [type(action) for action in opened] == [Opened]
    return made


def finish(session: Session, actions: Actions) -> tuple[list[Command], Actions, int]:
    """Lets it continue, and the server grant all: the commands, the last actions, how often others had their turn."""
    commands: list[Command] = []
    turns = 0
    while True:
        if actions and isinstance(actions[-1], MoreWork):
            turns += 1
            actions = session.continue_work()
        elif actions and isinstance(actions[0], SendCommand):
            commands.append(actions[0].command)
            asked = len(actions[0].command.arguments) - 4
            actions = session.reply(
                commands[-1], [1] * (asked // 2 if commands[-1].arguments[0] == SUBSCRIBE else asked)
            )
        else:
            return commands, actions, turns


SUBSCRIBE = "SESSION.SUBSCRIBE"


def many(count: int) -> bytes:
    return packets.subscribe(1, *((f"t/{number}", 1) for number in range(count)))


def test_many_filters_are_checked_in_slices_and_asked_for_in_pieces(session: Session) -> None:
    commands, actions, turns = finish(session, session.packet(many(1000)))
    assert turns > 100
    assert [len(command.arguments) for command in commands] == [4 + 2 * MOST_AT_ONCE] * (1000 // MOST_AT_ONCE)
    assert sent(actions) == packets.suback(1, *[1] * 1000)
    assert isinstance(actions[-1], Continue)


def test_many_filters_are_unsubscribed_in_slices(session: Session) -> None:
    data = packets.unsubscribe(1, *(f"t/{number}" for number in range(450)))
    commands, actions, turns = finish(session, session.packet(data))
    assert turns > 100
    assert [len(command.arguments) - 4 for command in commands] == [200, 200, 50]
    assert [type(action) for action in actions] == [Send, Continue]


def test_rights_that_change_between_two_slices_count_for_the_whole_packet(session: Session) -> None:
    actions = session.packet(many(40))
    for _ in range(5):
        assert isinstance(actions[-1], MoreWork)
        actions = session.continue_work()
    review = told(session.change_permissions(Rules(b"t/1")))
    assert review.arguments[0] == "SESSION.SUBSCRIPTIONS"
    commands, actions, _ = finish(session, actions)
    assert [command.arguments[4:] for command in commands] == [(b"t/1", 1)]
    assert sent(actions) == packets.suback(1, *[1 if number == 1 else 0x80 for number in range(40)])


def test_a_review_of_many_subscriptions_is_done_in_slices_behind_the_packet_under_way(session: Session) -> None:
    review = told(session.change_permissions(Rules()))
    actions = session.packet(many(40))
    assert isinstance(actions[-1], MoreWork)
    assert session.reply(review, [b"0", {b"u/%d" % number: b"1" for number in range(450)}]) == []
    revoked: list[Command] = []
    answered = b""
    while any(isinstance(action, MoreWork) for action in actions):
        actions = session.continue_work()
        answered += sent(actions)
        revoked += [action.command for action in actions if isinstance(action, SendCommand)]
    assert answered == packets.suback(1, *[0x80] * 40)
    assert [len(command.arguments) - 4 for command in revoked] == [200, 200, 50]


def test_a_session_that_ends_between_two_slices_computes_no_more(session: Session) -> None:
    assert isinstance(session.packet(many(40))[-1], MoreWork)
    session.packet(packets.DISCONNECT)
    assert session.phase is Phase.ENDED
    assert session.continue_work() == []
