"""Times and ages as callers say them: each form has one meaning, and a number that cannot be meant is refused."""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

import holdmq
from holdmq import (
    ArgumentError,
    HoldMQ,
    Message,
    Publisher,
    QueueBounds,
    SubscriptionOptions,
    Will,
    commands,
    history_commands,
)
from holdmq._history_times import replay_needs_clock, replay_text
from holdmq.history_commands import Duration, Start, end_ms, time_ms

NOW_S = 1_763_912_345.678
NOW_MS = 1_763_912_345_678
MOMENT = datetime(2025, 11, 23, 15, 39, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NOW_S, NOW_MS),
        (NOW_MS, NOW_MS),
        (MOMENT, NOW_MS),
        (MOMENT.replace(tzinfo=None), NOW_MS),
        ("2025-11-23T15:39:05.678+00:00", NOW_MS),
        (str(NOW_MS), NOW_MS),
        (str(NOW_S), NOW_MS),
        (timedelta(hours=1), NOW_MS - 3_600_000),
        ("24h", NOW_MS - 86_400_000),
        ("now", NOW_MS),
        ("earliest", None),
        (0, 0),
        (0.0, 0),
        (10**11, 10**11),
        (1e8, 10**11),
    ],
)
def test_each_form_of_a_time_has_one_meaning(value: Any, expected: int | None) -> None:
    assert time_ms("start", value, NOW_MS) == expected


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (int(NOW_S), r"which is 1970-01-21 in milliseconds since 1970; as seconds it would be 2025-11-23"),
        (str(int(NOW_S)), "1970-01-21"),
        (1, "1970-01-01 in milliseconds since 1970; expected earliest"),
        (NOW_S * 1000, "a float counts seconds since 1970"),
        (5.0, "1970-01-01 in seconds since 1970"),
        (-1.0, "1969-12-31"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-5, "-5"),
        (NOW_MS * 1000, "expected a whole number from 0"),
        (True, "expected earliest, now"),
        (None, "expected earliest, now"),
        (b"24h", "expected earliest, now"),
        (timedelta(seconds=-1), "not in the past"),
        ("yesterday", "expected earliest, now"),
        ("24H", "expected earliest, now"),
        (datetime(1969, 1, 1, tzinfo=UTC), "expected a whole number from 0"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(value: Any, hint: str) -> None:
    with pytest.raises(ArgumentError, match=hint):
        time_ms("start", value, NOW_MS)


def test_an_end_is_a_time_and_not_the_beginning() -> None:
    assert end_ms("end", "1h", NOW_MS) == NOW_MS - 3_600_000
    with pytest.raises(ArgumentError, match="end is 'earliest', before which nothing is"):
        end_ms("end", "earliest")


@pytest.mark.parametrize("method", ["start_replay", "follow", "store"])
def test_seconds_as_int_replay_nothing_but_an_error(hold: HoldMQ, method: str) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "start_replay": lambda start: hold.history.start_replay("s/#", start),
        "follow": lambda start: hold.history.follow("s/#", start),
        "store": lambda start: hold.history.store("s").start_replay("s/#", start),
    }
    with pytest.raises(ArgumentError, match=r"start is .* in milliseconds since 1970"):
        calls[method](int(time.time()))


def test_a_replay_begins_and_ends_at_times_of_any_form(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#", age="24h")
    hold.topics.publish("s/x", "old", qos=1)
    old = next(iter(hold.history.start_replay("s/#"))).time_us / 1e6
    while time.time() < old + 0.02:
        hold.supports()
    hold.topics.publish("s/x", "new", qos=1)
    between = old + 0.01
    moment = datetime.fromtimestamp(between, UTC)
    for form in (between, moment, moment.isoformat(), int(between * 1000), f"{between:.6f}"):
        assert [message.payload for message in hold.history.start_replay("s/#", form)] == [b"new"]
        assert [message.payload for message in hold.history.start_replay("s/#", end=form)] == [b"old"]
    for long_ago in (timedelta(hours=1), "1h", "now"):
        assert len(list(hold.history.start_replay("s/#", long_ago))) == (0 if long_ago == "now" else 2)
    assert list(hold.history.start_replay("s/#", end=timedelta(hours=1))) == []
    store = hold.history.store("s")
    assert store.sequence_at(0, between) == 2
    with pytest.raises(ArgumentError, match="1970"):
        store.sequence_at(0, int(between))


@pytest.mark.parametrize(
    ("start", "now", "text"),
    [
        ("earliest", False, "earliest"),
        ("earliest!", False, "earliest!"),
        ("now!", False, "now!"),
        ("", False, ""),
        ("!", False, "!"),
        ("1h", True, str(NOW_MS - 3_600_000)),
        ("1h!", True, f"{NOW_MS - 3_600_000}!"),
        (timedelta(hours=1), True, str(NOW_MS - 3_600_000)),
        (NOW_S, False, str(NOW_MS)),
        (f"{NOW_MS}!", False, f"{NOW_MS}!"),
        (MOMENT, False, str(NOW_MS)),
        ("2025-11-23T15:39:05.678Z!", False, f"{NOW_MS}!"),
    ],
)
def test_the_replay_of_a_subscription_begins_where_any_replay_does(start: Any, now: bool, text: str) -> None:
    assert replay_needs_clock(start) is now
    assert replay_text(start, NOW_MS) == text


def test_a_session_subscribes_from_a_time_of_any_form(hold: HoldMQ) -> None:
    hold.history.create("s", "s/#")
    hold.topics.publish("s/x", "m", qos=1)
    session = hold.session("c")
    starts: list[Start] = [timedelta(hours=1), "1h", time.time() - 60, datetime.now(UTC) - timedelta(hours=1)]
    for start in starts:
        session.open("o", clean=True, expiry=60)
        assert session.subscribe("s/#", replay=start) == (True,)
        assert session.replay().delivered == 1
    assert session.subscribe_each({"s/+": SubscriptionOptions(replay="1h")}) == (True,)
    assert session.replay().delivered == 1
    for wrong in (int(time.time()), "yesterday", 5.0):
        with pytest.raises(ArgumentError, match="replay is"):
            session.subscribe("s/y", replay=wrong)
    assert set(session.subscriptions()) == {"s/#", "s/+"}


def test_ages_are_seconds_a_timedelta_or_a_text(hold: HoldMQ) -> None:
    ages: list[Duration] = [86400, 86400.0, 86399.5, timedelta(days=1), "24h", "1d", "1440m"]
    for number, age in enumerate(ages):
        hold.history.create(f"s{number}", f"s{number}/#", age=age, epoch="1h", learn=timedelta(hours=2))
    assert {(one.age, one.epoch, one.learn) for one in hold.history.stores()} == {(86400, 3600, 7200)}


DURATIONS: list[Callable[[Any], Any]] = [
    lambda value: history_commands.history_store("s", ["a"], age=value),
    lambda value: history_commands.history_append("s", Message(topic="a", payload=b""), ttl=value),
    lambda value: commands.topic_publish("a", b"", ttl=value),
    lambda value: commands.session_add("c", [b""], ttl=value),
    lambda value: commands.session_add_expiring("c", [(b"", value)]),
    lambda value: commands.session_open("c", "o", expiry=value, lease=value, will=Will("a", ttl=value, delay=value)),
    lambda value: commands.session_close("c", epoch=1, expiry=value),
    lambda value: commands.session_owner("o", value),
]


@pytest.mark.parametrize("build", DURATIONS)
def test_every_age_takes_the_same_forms(build: Callable[[Any], Any]) -> None:
    for value in (60.0, timedelta(minutes=1), "60s", "1m", 59.2):
        assert build(value).words == build(60).words
    for wrong in ("60", "1 h", "", -1, -1.0, math.inf, math.nan, True, timedelta(-1), datetime.now(UTC), 2**33, b"1h"):
        with pytest.raises(ArgumentError, match=r"expected .* seconds, as a number, a timedelta, or text"):
            build(wrong)


LASTING = {"age", "ttl", "expiry", "lease", "learn", "seconds", "lasting", "delay"}
AT = {"start", "end", "time", "replay"}


def taken() -> Iterator[tuple[str, str, Any]]:
    """Each parameter of the client: where, its name, its annotation."""
    kinds = [one for one in vars(holdmq).values() if inspect.isclass(one)]
    members = [one for kind in kinds for one in inspect.getmembers(kind, inspect.isfunction)]
    methods = [function for name, function in members if not name.startswith("_")]
    values = [kind for kind in kinds if kind in (Will, Publisher, QueueBounds)]
    for function in [*methods, *values]:
        for one in inspect.signature(function).parameters.values():
            yield f"{function.__qualname__}({one.name})", one.name, one.annotation


def test_whatever_takes_an_age_or_a_time_takes_all_forms() -> None:
    wrong, found = [], set()
    for where, name, annotation in taken():
        parts = set(get_args(annotation)) - {type(None)}
        wanted = get_args(Duration) if name in LASTING else get_args(Start) if name in AT else ()
        if name == "epoch" and "create" in where:
            wanted = get_args(Duration)
        if wanted:
            found.add(where)
            if parts != set(wanted):
                wrong.append(f"{where}: {annotation}")
    assert wrong == []
    assert {"History.create(age)", "AsyncSession.subscribe(replay)", "AsyncHistory.start_replay(end)"} <= found
    assert {"History.create(epoch)", "Will(delay)", "DryRun.start(seconds)", "HistoryStore.sequence_at(time)"} <= found
