"""Every function that makes a command refuses every argument of the wrong kind, and says which and what is accepted."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdmq import ArgumentError, Message, ProducerChunk, commands, core, history_commands
from holdmq._sync.replay import ReplayOptions
from tests.client.wrong_arguments import VALUES, Arguments, builders, right_for, wrong_calls, wrong_for

BUILDERS = sorted(set(builders()), key=lambda function: function.__name__)


def test_there_are_functions_to_be_tested() -> None:
    assert len(BUILDERS) > 50


@pytest.mark.parametrize("function", BUILDERS)
def test_a_command_takes_what_is_right(function: Callable[..., Any]) -> None:
    arguments = Arguments(function)
    assert function(*arguments.positional, **arguments.named).words


@pytest.mark.parametrize("function", BUILDERS)
def test_a_command_refuses_what_is_of_the_wrong_kind(function: Callable[..., Any]) -> None:
    wrong = []
    for name, value, arguments in wrong_calls(function):
        try:
            function(*arguments.positional, **arguments.named)
        except ArgumentError as error:
            if "expected" not in str(error):
                wrong.append(f"{name}={value!r}: {error}")
        except Exception as error:  # noqa: BLE001 - shown together with the others
            wrong.append(f"{name}={value!r}: {error!r}")
        else:
            wrong.append(f"{name}={value!r}: accepted")
    assert wrong == []


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_refuses_fields_of_the_wrong_kind_before_it_is_sent(kind: type) -> None:
    wrong = []
    fields = inspect.signature(kind).parameters.values()
    right = {one.name: right_for(one.annotation) for one in fields if one.default is one.empty}
    VALUES[kind](kind(**right))
    for one in fields:
        for value in wrong_for(one.annotation):
            try:
                VALUES[kind](kind(**{**right, one.name: value}))
            except ArgumentError as error:
                if "expected" not in str(error):
                    wrong.append(f"{one.name}={value!r}: {error}")
            except Exception as error:  # noqa: BLE001 - shown together with the others
                wrong.append(f"{one.name}={value!r}: {error!r}")
            else:
                wrong.append(f"{one.name}={value!r}: accepted")
    assert wrong == []


LONG = "x" * 70_000
TOO_LONG: list[Callable[[], Any]] = [
    lambda: commands.session_last(LONG),
    lambda: commands.session_last(""),
    lambda: commands.session_last("c", prefix=LONG),
    lambda: commands.session_open("c", LONG),
    lambda: commands.session_open("c", "o", identity=LONG),
    lambda: commands.session_owner(LONG, 60),
    lambda: commands.session_add("c", [b""], producer=(LONG, 1)),
    lambda: commands.topic_publish(LONG, b""),
    lambda: commands.topic_publish("a", b"", publisher=LONG),
    lambda: commands.topic_publish("a", b"", producer=ProducerChunk(LONG, 1, 1)),
    lambda: commands.topic_retained(LONG),
    lambda: history_commands.history_append("s", Message(topic="a", payload=b"", publisher=LONG)),
    lambda: history_commands.history_import("s", 0, [Message(topic="a", payload=b"", publisher=LONG)]),
    lambda: history_commands.history_hold("s", LONG),
    lambda: history_commands.history_info(LONG),
]


@pytest.mark.parametrize("build", TOO_LONG)
def test_a_name_that_is_too_long_is_refused_and_not_repeated_as_a_whole(build: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["ü", "a b", "a/b", "", "x" * 65, b"\xff", "a{b}", "*"])
def test_the_name_of_a_store_has_the_characters_that_a_server_takes(name: str | bytes) -> None:
    with pytest.raises(ArgumentError, match=r"store (is|has) .*; expected"):
        history_commands.history_info(name)


def test_text_that_is_not_utf_8_is_refused() -> None:
    builds: list[Callable[[str], Any]] = [
        commands.session_last,
        commands.channel_last,
        commands.topic_retained,
        lambda text: commands.channel_publish("x", text),
        lambda text: Message(topic=text, payload=b"").to_record(),
    ]
    for build in builds:
        with pytest.raises(ArgumentError, match=r"is '\\ud800'; expected text that can be written as UTF-8"):
            build("\ud800")
    assert commands.session_last("\udcff").words == ("SESSION.LAST", core.session_key(b"\xff"))


class NotShown:
    """Neither a truth value nor a text."""

    def __bool__(self) -> bool:
        raise ValueError("no truth")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


HUGE = 10**5000
"""Python does not write so many digits."""
EXTREME: dict[str, Callable[[], Any]] = {
    "a number that Python does not write": lambda: history_commands.history_trim("s", 0, HUGE),
    "a payload that cannot be shown": lambda: commands.topic_publish("a", NotShown()),  # type: ignore[arg-type]
    "a flag that cannot be shown": lambda: commands.topic_publish("a", b"", retain=NotShown()),  # type: ignore[arg-type]
    "an age of many digits": lambda: commands.topic_publish("a", b"", ttl="9" * 5000 + "d"),
    "the longest age": lambda: commands.topic_publish("a", b"", ttl=timedelta.max),
    "the shortest age": lambda: commands.topic_publish("a", b"", ttl=timedelta.min),
    "a time of many digits": lambda: history_commands.time_ms("start", "9" * 5000),
    "a time that Python does not write": lambda: history_commands.time_ms("start", HUGE),
    "so long ago, in many digits": lambda: history_commands.time_ms("start", "9" * 5000 + "d"),
    "a deep bookmark": lambda: ReplayOptions.from_bookmark(
        "[" * 200_000, page=1, reconnect=1, follow=False, timeout=None
    ),
}


@pytest.mark.parametrize("call", EXTREME.values(), ids=EXTREME)
def test_what_no_limit_was_meant_for_is_refused_as_all_that_is_wrong(call: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match="expected") as caught:
        call()
    assert len(str(caught.value)) < 500
