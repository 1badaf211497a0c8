"""Passwords, their cache and queue, and the slowing down of guesses."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio
from argon2 import PasswordHasher

from holdmq.errors import ArgumentError
from holdmq_bridge.auth.fair_queue import FairQueue
from holdmq_bridge.auth.passwords import (
    MAX_PASSWORD_BYTES,
    BadHashError,
    BusyError,
    UnwantedError,
    Verifier,
    check_hash,
    hash_password,
)
from holdmq_bridge.auth.throttle import AddressBudget, Known, Throttle, source_of

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASH = CHEAP.hash(b"right", salt=b"the same in each process")  # it names tests

MakeVerifier = Callable[..., Verifier]


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def verifier() -> AsyncIterator[MakeVerifier]:
    made: list[Verifier] = []

    def make(**options: Any) -> Verifier:
        one = Verifier(**{"threads": 1, "max_waiting": 100, "max_cached": 100, "cached_s": 60.0, **options})
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def test_a_hash_is_argon2id_and_differs_each_time() -> None:
    first, second = hash_password(b"pw"), hash_password(b"pw")
    assert first.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert first != second
    check_hash(first)


@pytest.mark.parametrize("password", [b"", b"x" * (MAX_PASSWORD_BYTES + 1)])
def test_a_password_that_cannot_be_sent_is_refused(password: bytes) -> None:
    with pytest.raises(ArgumentError, match="expected 1 to 65535"):
        hash_password(password)


@pytest.mark.parametrize(
    "stored",
    [
        "plain", "", "$argon2id$", "$2b$12$abcdefghijklmnopqrstuv",
        HASH.replace("m=8", "m=4194304"), HASH.replace("t=1", "t=1000"), HASH.replace("p=1", "p=99"),
        HASH.replace("argon2id", "argon2i"),
    ],
)  # fmt: skip
def test_an_invalid_or_too_costly_hash_is_refused(stored: str) -> None:
    with pytest.raises(BadHashError):
        check_hash(stored)


async def test_right_wrong_and_missing_passwords_are_distinguished(verifier: MakeVerifier) -> None:
    one = verifier()
    assert await one.matches("u", b"right", HASH)
    assert not await one.matches("u", b"wrong", HASH)
    assert not await one.matches("u", b"right", "")
    with pytest.raises(BadHashError):
        await one.matches("u", b"right", "broken")


async def test_a_right_password_is_computed_once(verifier: MakeVerifier) -> None:
    clock = Clock()
    one = verifier(clock=clock)
    for _ in range(5):
        assert await one.matches("u", b"right", HASH)
    assert (one.checked, one.cached) == (1, 4)
    clock.now += 61
    assert await one.matches("u", b"right", HASH)
    assert one.checked == 2


async def test_what_is_remembered_is_of_this_user_password_and_hash(verifier: MakeVerifier) -> None:
    one = verifier()
    assert await one.matches("u", b"right", HASH)
    assert not await one.matches("u", b"righ", HASH)
    assert not await one.matches("u", b"right", CHEAP.hash(b"new"))
    assert await one.matches("v", b"right", HASH)
    # The same letters cut elsewhere are other words.
    assert not await one.matches("ur", b"ight", HASH)
    assert one.cached == 0


async def test_wrong_passwords_are_not_remembered_and_memory_is_bounded(verifier: MakeVerifier) -> None:
    one = verifier(max_cached=2)
    for _ in range(3):
        assert not await one.matches("u", b"wrong", HASH)
    assert one.checked == 3
    for user in ("a", "b", "c"):
        await one.matches(user, b"right", HASH)
    await one.matches("c", b"right", HASH)
    assert one.cached == 1
    await one.matches("a", b"right", HASH)  # the oldest was forgotten
    assert one.cached == 1


async def test_a_fleet_with_one_password_that_comes_at_once_is_computed_once(verifier: MakeVerifier) -> None:
    one = verifier()
    stored = hash_password(b"shared")
    assert all(await asyncio.gather(*(one.matches("fleet", b"shared", stored) for _ in range(500))))
    assert one.checked == 1


async def test_a_full_queue_is_an_error_at_once(verifier: MakeVerifier) -> None:
    one = verifier(max_waiting=3)
    slow = hash_password(b"x")
    waiting = [asyncio.ensure_future(one.matches("u", b"%d" % i, slow)) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await one.matches("u", b"one too many", slow)
    assert await asyncio.gather(*waiting) == [False] * 3
    assert not await one.matches("u", b"now there is room", slow)


async def given_up(checks: Sequence[asyncio.Future[bool]]) -> None:
    for check in checks:
        check.cancel()
    await asyncio.gather(*checks, return_exceptions=True)


async def test_a_client_that_waits_alone_waits_for_one_check_of_each_other_source(verifier: MakeVerifier) -> None:
    one, slow = verifier(), hash_password(b"right")
    flood = [asyncio.ensure_future(one.matches("u", b"%d" % i, slow, source="a")) for i in range(30)]
    await asyncio.sleep(0)
    assert await one.matches("good", b"right", slow, source="b")
    assert one.checked <= 4  # the one under way, one of the others, its own, and the next has begun
    await given_up(flood)


async def test_anyone_who_has_logged_in_before_is_served_first(verifier: MakeVerifier) -> None:
    one, slow = verifier(), hash_password(b"right")
    crowd = [asyncio.ensure_future(one.matches("u", b"%d" % i, slow, source=str(i))) for i in range(30)]
    await asyncio.sleep(0)
    assert await one.matches("good", b"right", slow, source="b", known=True)
    assert one.checked <= 3  # the one under way, its own, and the next has begun
    await given_up(crowd)


async def test_a_full_queue_makes_room_at_the_cost_of_the_source_that_has_most(verifier: MakeVerifier) -> None:
    one, slow = verifier(max_waiting=10), hash_password(b"right")
    flood = [asyncio.ensure_future(one.matches("u", b"%d" % i, slow, source="a")) for i in range(10)]
    await asyncio.sleep(0)
    assert await one.matches("good", b"right", slow, source="b")
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [bool] * 9 + [BusyError]


async def test_what_nobody_waits_for_any_more_is_not_computed(verifier: MakeVerifier) -> None:
    one, slow = verifier(), hash_password(b"right")
    first = asyncio.ensure_future(one.matches("u", b"0", slow))
    gone = [asyncio.ensure_future(one.matches("u", b"%d" % i, slow, is_wanted=lambda: False)) for i in range(1, 9)]
    shared = [
        asyncio.ensure_future(one.matches("u", b"right", slow, is_wanted=is_wanted))
        for is_wanted in (lambda: False, lambda: True)
    ]
    assert await asyncio.gather(*shared) == [True, True]
    outcomes = await asyncio.gather(*gone, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {UnwantedError}
    assert not await first
    assert one.checked == 2


# ---- fair places -----------------------------------------------------------------------------------------------------


def popped(queue: FairQueue[str]) -> list[str]:
    found = []
    while (job := queue.pop()) is not None:
        found.append(job)
    return found


def test_sources_take_turns_and_known_ones_come_first() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for number in range(3):
        assert queue.put("a", f"a{number}", known=False) is None
    assert queue.put("b", "b0", known=False) is None
    assert queue.put("c", "c0", known=True) is None
    assert len(queue) == 5
    assert popped(queue) == ["c0", "a0", "b0", "a1", "a2"]
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("waiting", "newcomer", "known", "displaced"),
    [
        ("aaab", "c", False, "a2"),
        ("aaab", "b", False, "a2"),
        ("aaab", "a", False, "new"),
        ("aabb", "a", False, "new"),
        ("aabb", "c", False, "a1"),
        ("abcd", "e", False, "new"),
        ("abcd", "e", True, "a0"),
        ("AABB", "c", False, "new"),
        ("AAAB", "c", True, "A2"),
        ("AAAb", "c", True, "b0"),
        ("AAAb", "c", False, "new"),
    ],
)
def test_a_full_queue_displaces_the_last_of_who_has_most(
    waiting: str, newcomer: str, known: bool, displaced: str
) -> None:
    queue: FairQueue[str] = FairQueue(4)
    for at, source in enumerate(waiting):  # upper case: it is known
        queue.put(source, f"{source}{waiting[:at].count(source)}", known=source.isupper())
    assert queue.put(newcomer, "new", known=known) == displaced
    left = popped(queue)
    assert len(left) == 4
    assert displaced not in left


async def test_a_caller_that_stops_waiting_takes_the_answer_from_no_other(verifier: MakeVerifier) -> None:
    one = verifier()
    stored = hash_password(b"right")
    first = asyncio.ensure_future(one.matches("u", b"right", stored))
    second = asyncio.ensure_future(one.matches("u", b"right", stored))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_checks_that_wait_at_the_end_are_given_up(verifier: MakeVerifier) -> None:
    one = verifier()
    stored = hash_password(b"x")
    waiting = [asyncio.ensure_future(one.matches("u", b"%d" % i, stored)) for i in range(20)]
    await asyncio.sleep(0)
    one.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(result, BusyError) for result in results)
    assert all(result is False or isinstance(result, BusyError) for result in results)


async def test_the_event_loop_continues_while_passwords_are_checked(verifier: MakeVerifier) -> None:
    one = verifier()
    stored = hash_password(b"x")
    checks = asyncio.gather(*(one.matches("u", b"%d" % i, stored) for i in range(10)))
    turns = 0
    while not checks.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns >= 12  # ten checks of some 30 ms: if they blocked, there were ten turns at most
    await checks


async def test_threads_that_check_passwords_have_a_lower_priority_than_messages(verifier: MakeVerifier) -> None:
    one = verifier()
    await one.matches("u", b"x", HASH)
    (thread,) = [thread for thread in threading.enumerate() if thread.name.startswith("holdmq-argon2")]
    assert thread.native_id is not None
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == min(own + 5, 19)


async def test_an_unknown_user_costs_as_much_as_a_wrong_password(verifier: MakeVerifier) -> None:
    one = verifier()
    stored = hash_password(b"x")

    times: dict[str, list[float]] = {stored: [], "": []}
    for number in range(10):
        for hashed, took in times.items():
            begin = time.process_time()  # of all threads: what else the machine does is not counted
            await one.matches("u", b"%d" % number, hashed)
            took.append(time.process_time() - begin)
    known, unknown = min(times[stored]), min(times[""])
    assert known / 2 < unknown < known * 2


# ---- guessing --------------------------------------------------------------------------------------------------------


def throttle(clock: Clock, **options: Any) -> Throttle:
    return Throttle(**{"free": 3, "first_s": 1.0, "longest_s": 10.0, "max_sources": 100, "clock": clock, **options})


def test_failures_beyond_the_free_ones_are_refused_for_growing_times() -> None:
    clock = Clock()
    guard, source = throttle(clock), ("u", "10.0.0.1")
    refused = []
    for _ in range(9):
        guard.failed(source)
        refused.append(guard.refused_for(source))
        clock.now += guard.refused_for(source)
    assert refused == [0, 0, 0, 1, 2, 4, 8, 10, 10]
    assert guard.refused_for(source) == 0


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_success_or_a_long_pause_forgets_failures(succeeds: bool) -> None:
    clock = Clock()
    guard, source = throttle(clock), ("u", "10.0.0.1")
    for _ in range(3):
        guard.failed(source)
    if succeeds:
        guard.succeeded(source)
    else:
        clock.now += 20.5
    guard.failed(source)
    assert guard.refused_for(source) == 0


def test_nobody_is_locked_out_from_elsewhere() -> None:
    guard = throttle(Clock())
    for _ in range(10):
        guard.failed(source_of("u", "10.0.0.1"))
    assert guard.refused_for(source_of("u", "10.0.0.1"))
    assert not guard.refused_for(source_of("u", "10.0.0.2"))
    assert not guard.refused_for(source_of("v", "10.0.0.1"))


def test_the_addresses_of_one_ipv6_site_are_one_source() -> None:
    assert source_of("u", "2001:db8:1:2::3") == source_of("u", "2001:db8:1:2:ffff::1%eth0")
    assert source_of("u", "2001:db8:1:2::3") != source_of("u", "2001:db8:1:3::3")
    assert source_of("u", "::ffff:10.0.0.1") == source_of("u", "10.0.0.1")
    assert source_of("u", "") == ("u", "")


def test_remembered_sources_are_bounded_and_the_oldest_goes_first() -> None:
    guard = throttle(Clock(), free=0, max_sources=2)
    for address in ("a", "b", "a", "c"):
        guard.failed(("u", address))
    assert [bool(guard.refused_for(("u", address))) for address in "abc"] == [True, False, True]


def test_an_address_has_a_budget_of_failures_and_gets_it_back() -> None:
    clock = Clock()
    budget = AddressBudget(most=3, per_second=0.5, max_sources=100, clock=clock)
    for _ in range(3):
        assert budget.refused_for("a") == 0
        budget.failed("a")
    assert budget.refused_for("a") == 2.0
    assert budget.refused_for("b") == 0
    clock.now += 2
    assert budget.refused_for("a") == 0
    budget.failed("a")
    assert budget.refused_for("a") == 2.0
    clock.now += 1000
    for _ in range(3):
        assert budget.refused_for("a") == 0
        budget.failed("a")
    assert budget.refused_for("a") == 2.0


def test_a_budget_of_0_and_an_address_that_is_not_known_have_no_bound() -> None:
    for budget, address in (
        (AddressBudget(most=0, per_second=1, max_sources=9, clock=Clock()), "a"),
        (AddressBudget(most=1, per_second=1, max_sources=9, clock=Clock()), ""),
    ):
        for _ in range(5):
            budget.failed(address)
        assert budget.refused_for(address) == 0


def test_budgets_and_known_sources_are_bounded() -> None:
    budget, known = AddressBudget(most=1, per_second=1, max_sources=2, clock=Clock()), Known(2)
    for name in "abc":
        budget.failed(name)
        known.add(("u", name))
    assert [budget.refused_for(name) > 0 for name in "abc"] == [False, True, True]
    assert [("u", name) in known for name in "abc"] == [False, True, True]
