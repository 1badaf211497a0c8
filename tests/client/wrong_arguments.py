"""Arguments of the wrong kind for any function of the client, found by its signature: a new one needs no new test.

What an annotation does not allow is wrong. Three things are allowed beyond it: `bytes` for `str`, a whole number for a
`float`, and 0 and 1 for a `bool`.
"""

import inspect
import json
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Union, get_args, get_origin

from holdmq import (
    Message,
    ProducerChunk,
    Publisher,
    QueueBounds,
    QueuedMessage,
    SubscriptionOptions,
    UserBounds,
    Will,
    commands,
    core,
    history_commands,
)
from holdmq.commands import Command

WRONG: list[Any] = [
    None, [], [1], {}, {1: 2}, (), ("a",), object(), math.nan, math.inf, True, 5, -1, 1.5, "", "what\n", b"\xff",
    timedelta(-1), datetime(1960, 1, 1, tzinfo=UTC), type,
]  # fmt: skip
RIGHT: dict[str, Any] = {
    "at_ms": 10**12,
    "bookmark": json.dumps({"filter": "a/#", "cursor": core.Cursor(0, 0, 0).encode().decode()}),
    "element": b"\xfc1 c",
    "publishes": [commands.topic_publish("a", b"")],
    "start": "earliest",
    "time": "earliest",
    "url": "redis://127.0.0.1:1",
}
"""An argument that is right, by the name of the parameter; for others any that the annotation allows."""
CANDIDATES = (
    *(1, "a", b"p", None, SubscriptionOptions(), Message(topic="a", payload=b""), QueuedMessage(b"p")),
    *(ProducerChunk("p", 1, 1), commands.session_last("c"), commands.SlotRange(0, 1)),
)


def fits(value: Any, annotation: Any) -> bool:
    """Whether the annotation allows the value."""
    if annotation in (Any, inspect.Parameter.empty):
        return True
    if annotation is None:
        return value is None
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(annotation))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(annotation)
    if annotation is bool:
        return isinstance(value, int) and value in (0, 1)
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is str:
        return isinstance(value, (bytes, str))
    if origin is type:
        return isinstance(value, type)
    return isinstance(value, origin or annotation)


def wrong_for(annotation: Any) -> Iterator[Any]:
    """What the annotation does not allow, or of which it does not allow a part."""
    yield from (value for value in WRONG if not fits(value, annotation))
    for option in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,):
        origin, parts = get_origin(option), get_args(option)
        if origin in (Sequence, Iterable, list):
            yield from ([value] for value in wrong_for(parts[0]))
        elif origin is tuple and parts[-1] is not Ellipsis:
            right = [right_for(part) for part in parts]
            for at, part in enumerate(parts):
                yield from ((*right[:at], value, *right[at + 1 :]) for value in wrong_for(part))
            yield tuple(right[1:])
            yield (*right, *right)
        elif origin in (Mapping, dict):
            key, value = parts
            yield from ({one: right_for(value)} for one in wrong_for(key) if isinstance(one, (str, bytes, float, int)))
            yield from ({right_for(key): one} for one in wrong_for(value))


def right_for(annotation: Any) -> Any:
    """What the annotation allows."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Sequence, Iterable, list):
        return [right_for(parts[0])]
    if origin in (Mapping, dict):
        return {right_for(parts[0]): right_for(parts[1])}
    if origin is tuple:
        return tuple(right_for(part) for part in parts)
    return next(one for one in CANDIDATES if fits(one, annotation))


def right_of(parameter: inspect.Parameter) -> Any:
    """An argument for the parameter that is right."""
    known = RIGHT.get(parameter.name)
    if parameter.kind is parameter.VAR_POSITIONAL:
        return known if known is not None else (right_for(parameter.annotation),)
    return known if known is not None and fits(known, parameter.annotation) else right_for(parameter.annotation)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What the function takes, without `self` and without what is handed on to others."""
    found = inspect.signature(function).parameters.values()
    return [one for one in found if one.name != "self" and one.kind is not one.VAR_KEYWORD]


class Arguments:
    """Arguments of a call, positional and by name."""

    def __init__(self, function: Callable[..., Any], changed: str = "", value: Any = None) -> None:
        self.positional: list[Any] = []
        self.named: dict[str, Any] = {}
        for one in parameters(function):
            is_changed = one.name == changed
            if one.kind is one.VAR_POSITIONAL:
                self.positional += [value] if is_changed else right_of(one)
            elif one.kind is one.KEYWORD_ONLY:
                if is_changed or one.default is one.empty:
                    self.named[one.name] = value if is_changed else right_of(one)
            elif is_changed or one.default is one.empty:
                self.positional.append(value if is_changed else right_of(one))
            else:
                self.positional.append(one.default)

    def __repr__(self) -> str:
        shown = [repr(one) for one in self.positional]
        return ", ".join([*shown, *(f"{name}={value!r}" for name, value in self.named.items())])


def wrong_calls(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Arguments]]:
    """Calls with one wrong argument: its name, the value, and all arguments."""
    for one in parameters(function):
        annotation = one.annotation
        for value in wrong_for(annotation):
            yield one.name, value, Arguments(function, one.name, value)


VALUES: dict[type, Callable[[Any], Any]] = {
    ProducerChunk: lambda value: commands.topic_publish("a", b"", producer=value),
    Publisher: lambda value: commands.topic_publish("a", b"", qos=2, publisher=value),
    QueueBounds: lambda value: commands.session_open("c", "o", bounds=value),
    QueuedMessage: lambda value: commands.session_import("c", [value]),
    SubscriptionOptions: lambda value: commands.session_subscribe("c", {"a": value}),
    UserBounds: lambda value: commands.session_open("c", "o", user_bounds=value),
    Will: lambda value: commands.session_open("c", "o", will=value),
    Message: lambda value: history_commands.history_import("s", 0, [value]),
}
"""Where a value with fields is used."""


def builders() -> Iterator[Callable[..., Any]]:
    """The functions that make commands."""
    for module in (commands, history_commands):
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and get_origin(inspect.signature(function).return_annotation) is Command:
                yield function
