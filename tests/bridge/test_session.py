"""The rare half of a client, from its packets: what it wants of the server and says to the client, without either."""

from typing import Any

import pytest
from hiredis import ReplyError

from holdmq_bridge.base.command import Command
from holdmq_bridge.base.reasons import TEMPORARY, Ending, Reason
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.session.access import Verdict
from holdmq_bridge.session.actions import (
    Action,
    Actions,
    Authenticate,
    Continue,
    End,
    MoreWork,
    NotGranted,
    Opened,
    Phase,
    ReadHistory,
    Retry,
    Send,
    SendCommand,
)
from holdmq_bridge.session.session import Session
from holdmq_bridge.session.subscriptions import MOST_AT_ONCE
from tests.bridge import packets
from tests.bridge.packets import Will

EPOCH = 77
NOW_MS = 1_000_000_000_000
CLAIM = ("IDENTITY", "anonymous")


class Rules:
    """Allows these topics and filters only."""

    def __init__(self, *allowed: bytes) -> None:
        self._allowed = allowed

    def may_publish(self, topic: bytes) -> bool:
        return topic in self._allowed

    def may_subscribe(self, topic_filter: bytes) -> bool:
        return topic_filter in self._allowed

    @property
    def subscribes_freely(self) -> bool:
        return False

    def publish_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        return [(True, topic) for topic in self._allowed], False

    def receive_entries(self) -> tuple[list[tuple[bool, bytes]], bool]:
        return self.publish_entries()


def new_session(**settings: Any) -> Session:
    return Session(Settings(**settings), lambda _key: "owner", "attempt-1", lambda: b"auto-1", lambda: NOW_MS)


def told(actions: Actions) -> Command:
    """The one command among the actions."""
    (command,) = (action.command for action in actions if isinstance(action, SendCommand))
    return command


def sent(actions: Actions) -> bytes:
    """All packets among the actions."""
    return b"".join(action.data for action in actions if isinstance(action, Send))


def the(kind: type[Any], actions: Actions) -> Any:
    """The one action of this type."""
    (action,) = (action for action in actions if isinstance(action, kind))
    return action


def opening(session: Session, connect: bytes, rules: Rules | None = None) -> Command:
    """The SESSION.OPEN of a client that is let in."""
    the(Authenticate, session.packet(connect))
    return told(session.authenticated(Verdict(True, rules=rules) if rules else Verdict(True)))


def opened(session: Session, connect: bytes, *, present: int = 0, rules: Rules | None = None) -> Opened:
    """Through the CONNECT."""
    command = opening(session, connect, rules)
    action: Opened = the(Opened, session.reply(command, [EPOCH, present]))
    return action


def ended(session: Session, actions: Actions, sent_serial: int = 0) -> list[Command]:
    """What the server is told at the end: the will and the SESSION.CLOSE, if there are any."""
    assert isinstance(actions[-1], End)
    return [action.command for action in session.closed(sent_serial) if isinstance(action, SendCommand)]


# ---- CONNECT ---------------------------------------------------------------------------------------------------------


def test_a_connect_asks_who_it_is_then_opens_the_session_then_is_answered() -> None:
    session = new_session(session_expiry_s=99)
    connect = packets.connect("c1", clean=False, username="u", password=b"p")
    assert session.packet(connect) == [Authenticate(b"c1", b"u", b"p", len(connect))]
    command = told(session.authenticated(Verdict(True)))
    assert command.arguments == (
        "SESSION.OPEN",
        b"{c1}",
        "OWNER",
        "owner",
        "WINDOW",
        100,
        "EXPIRY",
        99,
        "ATTEMPT",
        "attempt-1",
        *CLAIM,
    )
    assert session.inbox == b"{c1}_inbox"
    assert session.reply(command, [EPOCH, 1]) == [Opened(packets.connack(present=True), True), ReadHistory()]
    assert (session.phase, session.epoch) == (Phase.OPEN, EPOCH)


def test_a_clean_session_ends_with_its_connection_and_is_never_present() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1"))
    assert command.arguments == (
        "SESSION.OPEN",
        b"{c1}",
        "OWNER",
        "owner",
        "CLEAN",
        "WINDOW",
        100,
        "EXPIRY",
        0,
        "ATTEMPT",
        "attempt-1",
        *CLAIM,
    )
    assert session.reply(command, [EPOCH, 0]) == [Opened(packets.connack(), False)]


def test_a_client_without_an_id_is_given_one() -> None:
    session = new_session()
    opened(session, packets.connect(""))
    assert session.client_id == b"auto-1"


def test_a_will_goes_along_with_the_opening() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1", will=Will("w", b"gone", 2, retain=True)))
    assert command.arguments[-6:] == ("WILL", b"w", b"gone", "WILLQOS", 2, "WILLRETAIN")


@pytest.mark.parametrize(
    ("reason", "code"),
    [(Reason.BAD_CREDENTIALS, 4), (Reason.NOT_AUTHORIZED, 5), (Reason.BANNED, 5), (Reason.SERVER_BUSY, 3)],
)
def test_a_client_that_is_not_let_in_learns_why_and_no_session_is_opened(reason: Reason, code: int) -> None:
    session = new_session(temporary_refusal="reason_code")
    session.packet(packets.connect("c1"))
    actions = session.authenticated(Verdict(False, reason))
    assert sent(actions) == packets.connack(code)
    assert the(End, actions).ending is Ending.REFUSED
    assert session.closed(0) == []
    assert session.is_finished


@pytest.mark.parametrize("reason", sorted(TEMPORARY))
def test_what_is_temporary_closes_the_connection_without_a_connack(reason: Reason) -> None:
    session = new_session()
    session.packet(packets.connect("c1"))
    actions = session.authenticated(Verdict(False, reason))
    assert sent(actions) == b""
    assert the(End, actions).ending is Ending.UNAVAILABLE
    assert session.is_finished


def test_a_will_without_the_right_to_publish_it_is_refused() -> None:
    session = new_session()
    session.packet(packets.connect("c1", will=Will("secret")))
    assert sent(session.authenticated(Verdict(True, rules=Rules(b"mine")))) == packets.connack(5)


def test_a_will_whose_right_is_taken_away_while_the_session_opens_is_refused_and_goes_nowhere() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1", will=Will("secret")))
    assert sent(session.change_permissions(Rules(b"mine"))) == packets.connack(5)
    close = told(session.reply(command, [EPOCH, 0]))
    assert close.arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH)  # without WILL


def test_anyone_who_is_expelled_while_the_session_opens_is_refused() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1", will=Will("secret")))
    assert sent(session.expel("blocked", Reason.ADMINISTRATIVE)) == packets.connack(5)
    assert told(session.reply(command, [EPOCH, 0])).arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH)


def test_rights_that_change_while_the_session_opens_are_those_that_it_begins_with() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1", clean=False))
    assert session.change_permissions(Rules(b"mine")) == []
    review = told(session.reply(command, [EPOCH, 1]))
    assert review.arguments == ("SESSION.SUBSCRIPTIONS", b"{c1}", "CURSOR", b"0")
    assert told(session.reply(review, [b"0", {b"mine": b"1", b"other": b"1"}])).arguments[-1] == b"other"


def test_a_review_reads_all_pages_of_the_subscriptions() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1", clean=False))
    assert session.change_permissions(Rules(b"mine")) == []
    first = told(session.reply(command, [EPOCH, 1]))
    second = told(session.reply(first, [b"=7", {b"other": b"1", b"mine": b"0"}]))
    assert second.arguments == ("SESSION.SUBSCRIPTIONS", b"{c1}", "CURSOR", b"=7")
    revoked = told(session.reply(second, [b"0", {b"more": b"1", b"other": b"1"}]))
    assert sorted(revoked.arguments[4:]) == [b"more", b"other"]


def test_a_list_that_another_server_cannot_continue_begins_again() -> None:
    session = new_session(max_subscriptions=2)
    opened(session, packets.connect("c1", clean=False), present=1)
    first = told(session.packet(packets.subscribe(1, ("new", 1), ("more", 1))))
    second = told(session.reply(first, [b"=7", {b"gone": b"1"}]))
    again = told(session.reply(second, ReplyError("STALECURSOR CURSOR is ...")))
    assert again.arguments == ("SESSION.SUBSCRIPTIONS", b"{c1}", "CURSOR", b"0")
    assert session.pending == [again]
    command = told(session.reply(again, [b"0", {}]))
    assert command.arguments[4:] == (b"new", 1, b"more", 1)


def test_a_client_id_that_is_too_long_is_refused() -> None:
    session = new_session(max_client_id_bytes=23)
    assert sent(session.packet(packets.connect("c" * 24))) == packets.connack(2)


def test_a_client_id_that_names_the_queue_of_a_group_is_refused() -> None:
    assert sent(new_session().packet(packets.connect("$share/g/a"))) == packets.connack(2)


@pytest.mark.parametrize("code", [1, 2])
def test_a_faulty_connect_is_answered_with_the_code_that_the_standard_has_for_it(code: int) -> None:
    session = new_session()
    actions = session.fault(Reason.MALFORMED, "why", packets.connect("c1"), code)
    assert sent(actions) == packets.connack(code)
    assert the(End, actions).detail == "why"


def test_what_the_server_refuses_for_now_is_asked_again() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1"))
    error = ReplyError("OOM command not allowed")
    assert session.reply(command, error) == [Retry(error)]
    assert session.resend() == [SendCommand(command)]
    the(Opened, session.reply(command, [EPOCH, 0]))


def test_a_session_that_the_server_refuses_for_good_is_answered_as_unavailable() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1"))
    actions = session.reply(command, ReplyError("WRONGTYPE no hash"))
    assert sent(actions) == packets.connack(3)
    assert session.closed(0) == []


def test_a_client_that_waits_too_long_for_its_session_is_notified_and_a_late_session_is_closed() -> None:
    session = new_session(temporary_refusal="reason_code")
    command = opening(session, packets.connect("c1", will=Will("w")))
    assert sent(session.time_out()) == packets.connack(3)
    assert session.closed(0) == []
    assert not session.is_finished
    closing = told(session.reply(command, [EPOCH, 0]))
    assert closing.arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH)  # it was never accepted: no will
    assert session.reply(closing, "OK") == []
    assert session.is_finished


@pytest.mark.parametrize("present", [0, 1])
def test_an_opening_without_a_reply_is_repeated_as_the_same_attempt(present: int) -> None:
    session = new_session()
    first = opening(session, packets.connect("c1", clean=False))
    assert [action.command for action in session.resend() if isinstance(action, SendCommand)] == [first]
    assert first.arguments[-4:] == ("ATTEMPT", "attempt-1", *CLAIM)
    assert the(Opened, session.reply(first, [EPOCH, present])).resumed is bool(present)


# ---- SUBSCRIBE and UNSUBSCRIBE ---------------------------------------------------------------------------------------


def test_a_subscribe_is_answered_after_the_servers_reply() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.subscribe(9, ("a/+", 1), ("b", 2))))
    assert command.arguments == ("SESSION.SUBSCRIBE", b"{c1}", "EPOCH", EPOCH, b"a/+", 1, b"b", 2)
    assert session.reply(command, [1, 1]) == [Send(packets.suback(9, 1, 2)), Continue()]


def test_what_is_not_allowed_is_refused_and_the_rest_granted() -> None:
    session = new_session()
    opened(session, packets.connect("c1"), rules=Rules(b"mine"))
    command = told(session.packet(packets.subscribe(9, ("yours", 1), ("mine", 1))))
    assert command.arguments[4:] == (b"mine", 1)
    assert sent(session.reply(command, [1])) == packets.suback(9, 0x80, 1)


def test_where_nothing_can_be_granted_the_server_is_not_asked() -> None:
    session = new_session()
    opened(session, packets.connect("c1"), rules=Rules())
    refused = NotGranted(1, b"a", Reason.NOT_AUTHORIZED, "")
    assert session.packet(packets.subscribe(9, ("a", 1))) == [refused, Send(packets.suback(9, 0x80)), Continue()]
    assert not session.pending


def test_filters_that_cannot_be_are_refused_one_by_one() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    deep = "/".join("x" * 200)
    command = told(session.packet(packets.subscribe(9, (deep, 1), ("a", 0))))
    assert sent(session.reply(command, [1])) == packets.suback(9, 0x80, 0)


def test_subscriptions_are_bounded_and_those_that_are_there_may_be_made_again() -> None:
    session = new_session(max_subscriptions=2)
    opened(session, packets.connect("c1", clean=False), present=1)
    listing = told(session.packet(packets.subscribe(1, ("old", 1), ("new", 1), ("more", 1))))
    assert listing.arguments == ("SESSION.SUBSCRIPTIONS", b"{c1}", "CURSOR", b"0")
    command = told(session.reply(listing, [b"0", {b"old": b"1"}]))
    assert command.arguments[4:] == (b"old", 1, b"new", 1)
    assert sent(session.reply(command, [0, 1])) == packets.suback(1, 1, 1, 0x80)


@pytest.mark.parametrize(
    ("topic_filter", "counts"),
    [
        pytest.param("a/b/c/d/e/f/g/#", 1, id="8 levels"),
        pytest.param("a/b/c/d/e/f/g/h/#", 2, id="9 levels"),
        pytest.param("/".join("+" * 128), 16, id="as many levels as there may be"),
        pytest.param("x" * 256, 1, id="256 bytes"),
        pytest.param("x" * 257, 2, id="257 bytes"),
        pytest.param("x" * 65_535, 256, id="as many bytes as there may be"),
        pytest.param("$share/g/a", 10, id="a share"),
        pytest.param("$share/g/" + "x" * 5_000, 20, id="a share with a long filter"),
    ],
)
def test_a_filter_that_costs_the_server_more_counts_as_several(topic_filter: str, counts: int) -> None:
    session = new_session(max_subscriptions=counts + 1)
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.subscribe(1, (topic_filter, 1))))
    assert sent(session.reply(command, [1])) == packets.suback(1, 1)
    listing = told(session.packet(packets.subscribe(2, (topic_filter, 1), ("a", 1), ("b", 1))))
    command = told(session.reply(listing, [b"0", {topic_filter.encode(): b"1"}]))
    assert command.arguments[4:] == (topic_filter.encode(), 1, b"a", 1)
    assert sent(session.reply(command, [0, 1])) == packets.suback(2, 1, 1, 0x80)
    command = told(session.packet(packets.unsubscribe(3, topic_filter)))
    assert sent(session.reply(command, [1])) == packets.unsuback(3)
    more = [(f"more/{number}", 1) for number in range(min(counts, MOST_AT_ONCE))]
    actions = session.packet(packets.subscribe(4, *more))
    while any(isinstance(action, MoreWork) for action in actions):
        actions = session.continue_work()
    command = told(actions)
    assert command.arguments[0] == "SESSION.SUBSCRIBE"
    assert sent(session.reply(command, [1] * len(more))) == packets.suback(4, *[1] * len(more))
    session = new_session(max_subscriptions=counts - 1 or 1)
    opened(session, packets.connect("c2"))
    if counts > 1:
        listing = told(session.packet(packets.subscribe(1, (topic_filter, 1))))
        assert sent(session.reply(listing, [b"0", {}])) == packets.suback(1, 0x80)


def test_a_subscription_that_the_server_refuses_for_good_fails_alone() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.subscribe(9, ("a", 1))))
    refused = NotGranted(1, b"a", Reason.UNSPECIFIED, "ERR no")
    assert session.reply(command, ReplyError("ERR no")) == [refused, Send(packets.suback(9, 0x80)), Continue()]


def test_an_unsubscribe_is_answered_whether_the_filter_was_there_or_not() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.unsubscribe(9, "a", "b")))
    assert command.arguments == ("SESSION.UNSUBSCRIBE", b"{c1}", "EPOCH", EPOCH, b"a", b"b")
    assert session.reply(command, [1, 0]) == [Send(packets.unsuback(9)), Continue()]


def test_a_command_without_a_reply_is_sent_again_when_the_server_is_back() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.subscribe(9, ("a", 1))))
    assert session.resend() == [SendCommand(command)]
    assert sent(session.reply(command, [1])) == packets.suback(9, 1)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_disconnect_removes_the_will_and_closes_the_session() -> None:
    session = new_session()
    opened(session, packets.connect("c1", will=Will("w")))
    (command,) = ended(session, session.packet(packets.DISCONNECT), sent_serial=5)
    assert command.arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH, "SENT", 5)
    session.reply(command, "OK")
    assert session.is_finished


@pytest.mark.parametrize("ending", [Ending.LOST, Ending.SILENT, Ending.SHUTDOWN, Ending.MALFORMED, Ending.SLOW])
def test_every_other_end_publishes_the_will(ending: Ending) -> None:
    session = new_session()
    opened(session, packets.connect("c1", will=Will("w")))
    (command,) = ended(session, session.end(ending))
    assert command.arguments[-1] == "WILL"


@pytest.mark.parametrize("ending", [Ending.TAKEN_OVER, Ending.GONE, Ending.DROPPED])
def test_a_session_that_is_lost_is_not_closed(ending: Ending) -> None:
    session = new_session()
    opened(session, packets.connect("c1", will=Will("w")))
    assert ended(session, session.end(ending)) == []
    assert session.is_finished


@pytest.mark.parametrize(
    ("error", "ending"), [("FENCED newer owner", Ending.TAKEN_OVER), ("NOSESSION gone", Ending.GONE)]
)
def test_a_fenced_command_ends_the_connection(error: str, ending: Ending) -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.subscribe(9, ("a", 1))))
    actions = session.reply(command, ReplyError(error))
    assert the(End, actions).ending is ending
    assert sent(actions) == b""


def test_a_client_that_is_lost_while_its_session_opens_leaves_none_behind() -> None:
    session = new_session()
    command = opening(session, packets.connect("c1", will=Will("w")))
    assert ended(session, session.end(Ending.LOST)) == []
    assert not session.is_finished
    assert told(session.reply(command, [EPOCH, 0])).arguments == ("SESSION.CLOSE", b"{c1}", "EPOCH", EPOCH)


def test_a_close_that_is_refused_for_now_is_not_forgotten() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    (command,) = ended(session, session.end(Ending.LOST))
    the(Retry, session.reply(command, ReplyError("READONLY no")))
    assert session.resend() == [SendCommand(command)]
    session.drop_pending()
    assert session.is_finished


def test_a_reply_to_what_is_no_longer_wanted_is_nothing() -> None:
    session = new_session()
    opened(session, packets.connect("c1"))
    command = told(session.packet(packets.subscribe(9, ("a", 1))))
    session.end(Ending.LOST)
    nothing: list[Action] = []
    assert session.reply(command, [1]) == nothing
