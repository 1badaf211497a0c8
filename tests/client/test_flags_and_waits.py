"""A flag is True, False, 1 or 0, and a wait is a number: what release 0.1 took by accident is refused."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdmq
from holdmq import (
    ArgumentError,
    HoldMQ,
    Message,
    SubscriptionOptions,
    commands,
    errors,
    history_commands,
)
from tests.support import embedded_kinds

server_kinds = embedded_kinds


class Index:
    """A whole number of another library, as numpy.int64."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __float__(self) -> float:
        return float(self.value)


class Truth:
    """A truth value of another library, as numpy.bool_."""

    def __init__(self, *, value: bool) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return self.value


class NoTruth:
    """Several of them, as an array."""

    def __bool__(self) -> bool:
        raise ValueError("which one?")


NO_FLAGS: tuple[Any, ...] = (
    *(Truth(value=True), "yes", "True", b"1", [0], 2, -1, 1.0),
    *(Truth(value=False), "", [], None, 0.0, NoTruth(), Index(1)),
)
WITH_FLAG: list[Callable[[Any], Any]] = [
    lambda flag: commands.topic_publish("a", b"", retain=flag).words,
    lambda flag: commands.session_open("c", "o", clean=flag).words,
    lambda flag: commands.session_fetch("c", inflight=flag).words,
    lambda flag: commands.session_list(connected=flag).words,
    lambda flag: history_commands.history_append("s", Message(topic="a", payload=b"", retain=flag)).words,
    lambda flag: Message(topic="a", payload=b"", retain=flag).to_record(),
    lambda flag: SubscriptionOptions(no_local=flag).text,
    lambda flag: SubscriptionOptions(retain_as_published=flag).text,
]


@pytest.mark.parametrize("build", WITH_FLAG)
def test_a_flag_of_another_kind_is_refused(build: Callable[[Any], Any]) -> None:
    for value in NO_FLAGS:
        with pytest.raises(ArgumentError, match=r"expected True or False$") as refused:
            build(value)
        assert repr(value) in str(refused.value)


@pytest.mark.parametrize("build", WITH_FLAG)
def test_1_and_0_are_accepted_as_flags(build: Callable[[Any], Any]) -> None:
    assert build(1) == build(True)
    assert build(0) == build(False)
    assert build(1) != build(0)


def test_a_refused_flag_sends_nothing(hold: HoldMQ) -> None:
    with pytest.raises(ArgumentError, match="retain is 'yes'; expected True or False"):
        hold.topics.publish("a", b"", retain="yes")  # type: ignore[arg-type]
    assert hold.topics.retained("#") == ()


def test_whole_numbers_of_other_libraries_are_taken_where_they_always_were() -> None:
    plain = SubscriptionOptions(2, retain_handling=1, identifier=7)
    assert SubscriptionOptions(Index(2), retain_handling=Index(1), identifier=Index(7)) == plain  # type: ignore[arg-type]
    message = Message(topic="a", payload=b"", qos=Index(1), time_ms=Index(5), expires_ms=Index(9))  # type: ignore[arg-type]
    assert message.to_record() == Message(topic="a", payload=b"", qos=1, time_ms=5, expires_ms=9).to_record()
    with pytest.raises(ArgumentError, match="qos is 3; expected a whole number from 0 to 2"):
        SubscriptionOptions(Index(3))  # type: ignore[arg-type]


def test_waits_are_numbers_of_any_library_and_no_flags(hold: HoldMQ) -> None:
    with hold.subscribe("x", timeout=Index(0), reconnect=Index(1)) as messages:  # type: ignore[arg-type]
        assert list(messages) == []
        for flag in (True, False):
            with pytest.raises(ArgumentError, match=f"timeout is {flag}; expected seconds from 0 on, as int or float"):
                messages.get(timeout=flag)
        assert messages.get(timeout=0) is None


def test_every_error_is_exported() -> None:
    assert set(errors.__all__) - set(holdmq.__all__) == {"ERRORS"}


@pytest.mark.parametrize(
    "replay", ["24h", timedelta(hours=24), datetime(2020, 1, 1, tzinfo=UTC), 1577836800.0, 1577836800000]
)
def test_options_take_all_forms_of_a_time(hold: HoldMQ, replay: Any) -> None:
    hold.history.create("s", "s/#")
    hold.history.store("s").append("s/x", "m", qos=1)
    session = hold.session("c")
    session.open("me")
    session.subscribe_each({"s/#": SubscriptionOptions(replay=replay)})
    assert session.replay().delivered == 1
