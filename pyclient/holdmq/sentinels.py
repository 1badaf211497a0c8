"""What Sentinels say of one service, and what follows from it if they disagree.

Everybody who asks Sentinels uses this: the command line, which asks once (primary.py), and the bridge and the console,
which follow them (holdmq_bridge/server/sentinels.py).  Nothing is sent or received here:

    question() ── yields a command ──► its caller sends it ── the reply ──► question() ... returns a View
    views ──► latest() ──► epoch and address of the primary

Invariants
 1. If Sentinels disagree, the later configuration epoch is right.
 2. During a failover the state of a Sentinel names the old primary until all replicas follow the new one; its answer to
    GET-MASTER-ADDR-BY-NAME does not.  That is asked after the state: a late epoch never comes with an early address.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis.exceptions import RedisError

from holdmq.address import MAX_PORT, Address, shown_address

__all__ = [
    "MAX_SENTINELS",
    "ODD",
    "OddAnswerError",
    "Question",
    "UnknownServiceError",
    "View",
    "address_of",
    "answered",
    "async_answered",
    "latest",
    "nobody_text",
    "question",
]

Question: TypeAlias = Generator[tuple[str, ...], Any, "View"]

MAX_SENTINELS = 64
"""Most Sentinels of a service that are asked: those of the URL, and those that these list."""
ODD = (ValueError, TypeError, LookupError, AttributeError)
"""What an answer raises that is none of a Sentinel, here or in redis-py, which reads it first."""

_NAMES_SHOWN = 8  # of services that a Sentinel watches
_ADDRESS = "SENTINEL GET-MASTER-ADDR-BY-NAME"  # answers nothing about a service that it does not watch
_DOWN = frozenset({"s_down", "o_down"})
_GONE = _DOWN | {"disconnected"}


class UnknownServiceError(RedisError):
    """The Sentinel does not watch the service."""

    def __init__(self, names: Sequence[object]) -> None:
        shown = ", ".join(repr(str(name)) for name in names[:_NAMES_SHOWN])
        more = f" and {len(names) - _NAMES_SHOWN} others" if len(names) > _NAMES_SHOWN else ""
        super().__init__(f"it watches {shown or 'no service'}{more}")


class OddAnswerError(RedisError):
    """It answered something else than a Sentinel does."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"answered something else than a Sentinel does ({error!r})")


@dataclass(frozen=True, slots=True)
class View:
    """What one Sentinel knows.

    Attributes:
        epoch: of its configuration.
        address: of the primary.
        is_down: it does not reach the primary.
        is_failing_over: it is about to promote a replica.  Afterwards it names another address than that of its state.
        others: all other Sentinels that it knows.
        present: those of them that it reaches.
    """

    epoch: int
    address: Address
    is_down: bool
    is_failing_over: bool
    others: tuple[Address, ...]
    present: tuple[Address, ...]


def question(service: str) -> Question:
    """Yields commands for one Sentinel, takes their replies, and returns what it knows.

    Raises:
        UnknownServiceError: it does not watch the service.
        OddAnswerError: an answer is none of a Sentinel.
    """
    if (yield _ADDRESS, service) is None:
        names = yield ("SENTINEL MASTERS",)
        try:
            raise UnknownServiceError(sorted(names))
        except ODD as error:
            raise OddAnswerError(error) from error
    state = yield "SENTINEL MASTER", service
    listed = yield "SENTINEL SENTINELS", service
    named = yield _ADDRESS, service
    try:
        address = address_of(*named)
        others = list(_others(listed))
        flags = _flags(state)
        return View(
            epoch=int(state.get("config-epoch") or 0),
            address=address,
            is_down=bool(flags & _DOWN),
            is_failing_over="failover_in_progress" in flags and address == address_of(state["ip"], state["port"]),
            others=tuple(other for other, _ in others),
            present=tuple(other for other, about in others if not about & _GONE),
        )
    except ODD as error:
        raise OddAnswerError(error) from error


def _others(listed: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Address, set[str]]]:
    """The other Sentinels, with their flags.  One whose name cannot be resolved may have no address."""
    for state in listed:
        try:
            address = address_of(state["ip"], state["port"])
        except ValueError:
            continue
        yield address, _flags(state)


def _flags(state: Mapping[str, Any]) -> set[str]:
    """With RESP2 redis-py leaves them as text."""
    flags = state["flags"]
    return set(flags.split(",") if isinstance(flags, str) else flags)


def answered(asking: Question, send: Callable[..., Any]) -> View:
    """Asks a question; `send`: the execute_command of a client of the Sentinel."""
    step = _step(asking, None)
    while not isinstance(step, View):
        step = _step(asking, send(*step))
    return step


async def async_answered(asking: Question, send: Callable[..., Awaitable[Any]]) -> View:
    """The same for asyncio."""
    step = _step(asking, None)
    while not isinstance(step, View):
        step = _step(asking, await send(*step))
    return step


def _step(asking: Question, reply: object) -> tuple[str, ...] | View:
    """The next command, or what the Sentinel knows."""
    try:
        return asking.send(reply)
    except StopIteration as end:
        view: View = end.value
        return view


def latest(views: Iterable[View]) -> tuple[int, Address] | None:
    """The latest epoch, and the primary that most of those that have it name; None if nobody has said anything."""
    views = tuple(views)
    epoch = max((view.epoch for view in views), default=0)
    votes = Counter(view.address for view in views if view.epoch == epoch)
    return (epoch, votes.most_common(1)[0][0]) if votes else None


def nobody_text(service: str, said: Iterable[tuple[Address, object]]) -> str:
    """The text of an error: no primary is known, and what each Sentinel said."""
    reasons = "; ".join(f"{shown_address(at)}: {reason}" for at, reason in said)
    return f"no Sentinel names a primary of {service!r} ({reasons})"


def address_of(host: object = "", port: object = "") -> Address:
    """An address as Sentinels write it.

    Raises:
        ValueError: the answer is not an address.
    """
    name, digits = str(host), str(port)
    if not name or not (digits.isascii() and digits.isdigit() and 0 < int(digits) <= MAX_PORT):
        raise ValueError(f"answered {name!r} and {digits!r} in the place of host and port")
    return name, int(digits)
