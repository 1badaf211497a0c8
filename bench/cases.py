"""The cases of `make bench`: for each row of the table the commands of both sides, and the goal.

Both sides do the same work on the same number of sessions, one command for each session in turn.  The scripts are those
of tests/module/tbmq_scripts.py, which keep messages as TBMQ 2.x does: JSON with the payload in base64.

The server without the module runs the baseline, the server with it the candidate.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import redis

from bench.wire import Command, packed
from tests.module.tbmq_scripts import TbmqSession

PAYLOAD_BYTES = 62
LIMIT, TTL_S = 10000, 604800  # TBMQ's defaults, and the module's
BATCH = 10
ONE_BY_ONE = 20  # messages of a session in a round, where each is a command of its own
FETCHED = 100
FETCH_PIPELINE = 20  # replies of 100 messages each
SLICE = 40  # GETs or SETs of a key in a round

# redis-py's script objects know text and digest; the connection behind them is never used.
_SCRIPTS = TbmqSession(redis.Redis())


@dataclass(frozen=True)
class Side:
    """What one server gets.

    Attributes:
        once: before the first round, not measured.
        before: before each round, not measured.
        work: what is measured.
        channels: what the listener subscribes to.
        heard_bytes: what the listener has to get in a round.
        keys: how many keys the database holds after a round.
    """

    work: list[bytes]
    keys: int
    once: list[bytes]
    before: list[bytes]
    channels: tuple[str, ...] = ()
    heard_bytes: int = 0


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: what is measured.
        against: the baseline.
        goal: "cheaper": the baseline costs at least `limit` times as much; "dearer": ours costs at most `limit` times
            as much; None: shown for comparison only.
        limit: see goal.
        messages: messages (or commands, where there are none) in a round of one side; figures are for one of them.
        sides: makes baseline and candidate.
        often: so many times as many rounds as other rows: more where little is to be told apart, less where preparing a
            round takes long.
    """

    name: str
    against: str
    goal: Literal["cheaper", "dearer"] | None
    limit: float
    messages: int
    sides: Callable[[], tuple[Side, Side]]
    often: float = 1


def all_cases(sessions: int) -> list[Case]:
    """The rows, for so many sessions (or channels, or keys)."""
    one, ten = sessions * ONE_BY_ONE, sessions * ONE_BY_ONE
    lua = "Lua script"
    return [
        Case("SESSION.ADD 1, 62 bytes", lua, "cheaper", 3.5, one, lambda: _add(sessions, 1, as_json=False)),
        Case("SESSION.ADD 1, TBMQ JSON", lua, "cheaper", 3.5, one, lambda: _add(sessions, 1, as_json=True)),
        Case("SESSION.ADD 10, 62 bytes", lua, "cheaper", 4.5, ten, lambda: _add(sessions, BATCH, as_json=False)),
        Case("SESSION.ADD 10, TBMQ JSON", lua, "cheaper", 4.5, ten, lambda: _add(sessions, BATCH, as_json=True)),
        Case(
            "SESSION.FETCH 100, 62 bytes", lua, "cheaper", 5, sessions * FETCHED, lambda: _fetch(sessions, False), 0.5
        ),
        Case(
            "SESSION.FETCH 100, TBMQ JSON", lua, "cheaper", 5, sessions * FETCHED, lambda: _fetch(sessions, True), 0.5
        ),
        Case("SESSION.ACK 1", lua, "cheaper", 2.5, one, lambda: _acknowledge(sessions, 1)),
        Case("SESSION.ACK 10", f"{lua}, 10 calls", "cheaper", 6, ten, lambda: _acknowledge(sessions, BATCH)),
        Case("PUBLISH, one subscriber", "stock PUBLISH", "dearer", 1.05, one, lambda: _publish_heard(sessions), 4),
        Case("PUBLISH, none: kept", "stock RPUSH", "dearer", 1.10, one, lambda: _publish_kept(sessions), 2),
        Case("GET", "no module", "dearer", 1.02, sessions * SLICE, lambda: _same(sessions, _get), 4),
        Case("SET", "no module", "dearer", 1.02, sessions * SLICE, lambda: _same(sessions, _set), 4),
    ]


# --- names and messages -----------------------------------------------------------------------------------------------


def _client(number: int) -> str:
    return f"client-{number:06}"


def _payload(number: int, turn: int) -> bytes:
    return (b"%06d:%06d:" % (number, turn)).ljust(PAYLOAD_BYTES, b"x")


def _message(number: int, turn: int) -> dict[str, object]:
    session = TbmqSession(_SCRIPTS.client, _client(number))
    return session.message(_payload(number, turn), topicName=f"europe/ua/kyiv/{number:06}/0")


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _names(number: int) -> tuple[str, str]:
    """Queue and counter."""
    return f"{{{_client(number)}}}_messages", f"{{{_client(number)}}}_last_packet_id"


# --- commands ---------------------------------------------------------------------------------------------------------

_FLUSH: Command = ("FLUSHALL", "SYNC")


def _script_add(number: int, turns: range) -> Command:
    batch = _text([_message(number, turn) for turn in turns])
    return ("EVALSHA", _SCRIPTS._add.sha, 2, *_names(number), LIMIT, batch, TTL_S)


def _our_add(number: int, turns: range, *, as_json: bool) -> Command:
    payloads = [_text(_message(number, turn)) if as_json else _payload(number, turn) for turn in turns]
    return ("SESSION.ADD", f"{{{_client(number)}}}", "MESSAGES", *payloads)


def _batches(total: int, size: int) -> Iterator[range]:
    return (range(first, first + size) for first in range(0, total, size))


_LOAD_ADD: Command = ("SCRIPT", "LOAD", _SCRIPTS._add.script)
_LOAD_GET: Command = ("SCRIPT", "LOAD", _SCRIPTS._get.script)
_LOAD_REMOVE: Command = ("SCRIPT", "LOAD", _SCRIPTS._remove.script)


# --- sides ------------------------------------------------------------------------------------------------------------


def _add(sessions: int, size: int, *, as_json: bool) -> tuple[Side, Side]:
    turns = list(_batches(ONE_BY_ONE, size))
    keys = sessions * (ONE_BY_ONE + 1 + 2)  # the message that is there before, queue and counter
    first = range(1)
    baseline = Side(
        once=packed([_LOAD_ADD]),
        before=packed([_FLUSH, *(_script_add(number, first) for number in range(sessions))]),
        work=packed(_script_add(number, turn) for turn in turns for number in range(sessions)),
        keys=keys,
    )
    candidate = Side(
        once=[],
        before=packed([_FLUSH, *(_our_add(number, first, as_json=as_json) for number in range(sessions))]),
        work=packed(_our_add(number, turn, as_json=as_json) for turn in turns for number in range(sessions)),
        keys=keys,
    )
    return baseline, candidate


def _fetch(sessions: int, as_json: bool) -> tuple[Side, Side]:
    """Each message is fetched once, as when a client comes back: reading it again may be cheaper."""
    keys = sessions * (FETCHED + 2)
    everything = range(FETCHED)
    fetches: list[Command] = [
        ("EVALSHA", _SCRIPTS._get.sha, 1, _names(number)[0], FETCHED) for number in range(sessions)
    ]
    baseline = Side(
        once=packed([_LOAD_ADD, _LOAD_GET]),
        before=packed([_FLUSH, *(_script_add(number, everything) for number in range(sessions))]),
        work=packed(fetches, FETCH_PIPELINE),
        keys=keys,
    )
    ours: list[Command] = [("SESSION.FETCH", f"{{{_client(number)}}}", "COUNT", FETCHED) for number in range(sessions)]
    candidate = Side(
        once=[],
        before=packed([_FLUSH, *(_our_add(number, everything, as_json=as_json) for number in range(sessions))]),
        work=packed(ours, FETCH_PIPELINE),
        keys=keys,
    )
    return baseline, candidate


def _acknowledge(sessions: int, size: int) -> tuple[Side, Side]:
    everything = range(ONE_BY_ONE + 1)  # one message stays: an empty queue is a rarer case
    keys = sessions * (1 + 2)

    def calls(number: int, turn: range) -> Iterator[Command]:
        return (("EVALSHA", _SCRIPTS._remove.sha, 1, _names(number)[0], packet_id + 1) for packet_id in turn)

    turns = list(_batches(ONE_BY_ONE, size))
    baseline = Side(
        once=packed([_LOAD_ADD, _LOAD_REMOVE]),
        before=packed([_FLUSH, *(_script_add(number, everything) for number in range(sessions))]),
        work=packed(command for turn in turns for number in range(sessions) for command in calls(number, turn)),
        keys=keys,
    )
    candidate = Side(
        once=[],
        before=packed([_FLUSH, *(_our_add(number, everything, as_json=False) for number in range(sessions))]),
        work=packed(
            ("SESSION.ACK", f"{{{_client(number)}}}", *(packet_id + 1 for packet_id in turn))
            for turn in turns
            for number in range(sessions)
        ),
        keys=keys,
    )
    return baseline, candidate


def _channel(number: int) -> str:
    return f"devices/{number:06}/state"


def _to_channels(command: str, channels: int) -> list[bytes]:
    return packed(
        (command, _channel(number), _payload(number, turn)) for turn in range(ONE_BY_ONE) for number in range(channels)
    )


def _publish_heard(channels: int) -> tuple[Side, Side]:
    name, payload = _channel(0), _payload(0, 0)
    message = len(f"*3\r\n$7\r\nmessage\r\n${len(name)}\r\n{name}\r\n${len(payload)}\r\n\r\n") + len(payload)
    side = Side(
        once=packed([_FLUSH]),
        before=[],
        work=_to_channels("PUBLISH", channels),
        keys=0,
        channels=tuple(_channel(number) for number in range(channels)),
        heard_bytes=channels * ONE_BY_ONE * message,
    )
    return side, side


def _publish_kept(channels: int) -> tuple[Side, Side]:
    def side(command: str) -> Side:
        first = packed([_FLUSH, *((command, _channel(number), _payload(number, 0)) for number in range(channels))])
        return Side(once=[], before=first, work=_to_channels(command, channels), keys=channels)

    return side("RPUSH"), side("PUBLISH")


def _get(number: int, _turn: int) -> Command:
    return ("GET", f"key-{number:06}")


def _set(number: int, turn: int) -> Command:
    return ("SET", f"key-{number:06}", _payload(number, turn))


def _same(keys: int, command: Callable[[int, int], Command]) -> tuple[Side, Side]:
    side = Side(
        once=packed([_FLUSH, *(_set(number, 0) for number in range(keys))]),
        before=[],
        work=packed(command(number, turn) for turn in range(SLICE) for number in range(keys)),
        keys=keys,
    )
    return side, side
