"""Every method of every class refuses every argument of the wrong kind before anything is sent, and changes nothing."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

import pytest

import holdmq
from holdmq import (
    ArgumentError,
    AsyncChannel,
    AsyncDryRun,
    AsyncHistory,
    AsyncHistoryPatterns,
    AsyncHistoryProducer,
    AsyncHistoryStore,
    AsyncHoldMQ,
    AsyncPipeline,
    AsyncProducer,
    AsyncReplay,
    AsyncReply,
    AsyncSession,
    AsyncSubscription,
    AsyncTopics,
    commands,
)
from tests.client.wrong_arguments import Arguments, wrong_calls

Made = Callable[[AsyncHoldMQ], Any]

OBJECTS: dict[type, Made] = {
    AsyncHoldMQ: lambda hold: hold,
    AsyncChannel: lambda hold: hold.channel("x", sharded=False),
    AsyncTopics: lambda hold: hold.topics,
    AsyncDryRun: lambda hold: hold.dry_run,
    AsyncSession: lambda hold: hold.session("c", epoch=1),
    AsyncProducer: lambda hold: hold.session("c").producer("p"),
    AsyncHistory: lambda hold: hold.history,
    AsyncHistoryStore: lambda hold: hold.history.store("s"),
    AsyncHistoryPatterns: lambda hold: hold.history.store("s").patterns,
    AsyncHistoryProducer: lambda hold: hold.history.store("s").producer("p"),
    AsyncPipeline: lambda hold: hold.pipeline(),
    AsyncReply: lambda hold: hold.pipeline().queue(commands.session_last("c")),
    AsyncReplay: lambda hold: hold.history.follow("a/#"),
    AsyncSubscription: lambda hold: hold.subscribe("x"),
}
"""How an object of each class is made; nothing is sent."""


class SentError(Exception):
    """Something was to be sent."""


class Unsent:
    """A client that sends nothing."""

    def __init__(self) -> None:
        self.connection_pool = self

    async def execute_command(self, *words: Any, **_: Any) -> Any:
        raise SentError(words)

    async def execute(self, **_: Any) -> Any:
        raise SentError

    async def __aenter__(self) -> Self:
        return self

    async def initialize(self) -> Any:
        raise SentError

    def pipeline(self, **_: Any) -> Any:
        return Queue()

    def pubsub(self, **_: Any) -> Any:
        raise SentError

    def get_encoder(self) -> Any:
        return self

    decode_responses = False


class Queue:
    """A pipeline of it."""

    def execute_command(self, *_: Any, **__: Any) -> None:
        """Queued only."""

    async def execute(self, **_: Any) -> Any:
        raise SentError


class UnsentCluster(Unsent):
    """A client of a cluster that sends nothing."""

    @property
    def nodes_manager(self) -> Any:
        raise SentError

    def get_primaries(self) -> Any:
        raise SentError

    def get_node_from_key(self, _: Any) -> Any:
        raise SentError

    def get_random_node(self) -> Any:
        raise SentError

    def keyslot(self, _: Any) -> Any:
        raise SentError


def methods() -> Iterator[tuple[type, str]]:
    """The public methods that take something, but for those that the package has for itself."""
    for kind in OBJECTS:
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            is_internal = "For use by HoldMQ only" in (function.__doc__ or "")
            if not name.startswith("_") and not is_internal and len(inspect.signature(function).parameters) > 1:
                yield kind, name


METHODS = sorted(methods(), key=lambda one: (one[0].__name__, one[1]))


@pytest.fixture(params=[Unsent, UnsentCluster])
def hold(request: pytest.FixtureRequest) -> AsyncHoldMQ:
    """A client that refuses to send."""
    return AsyncHoldMQ(request.param())


async def called(function: Callable[..., Any], arguments: Arguments) -> Any:
    """Calls it, and begins whatever it returns."""
    result = function(*arguments.positional, **arguments.named)
    if isinstance(result, AsyncIterator) and not isinstance(result, (AsyncReplay, AsyncSubscription)):
        return await result.__anext__()
    if not isinstance(result, Awaitable):
        return result
    return await result


def state(thing: Any) -> dict[str, Any]:
    return dict(vars(thing))


def test_every_class_is_tested() -> None:
    made_here = {
        one for one in vars(holdmq).values() if inspect.isclass(one) and one.__module__.startswith("holdmq._async")
    }
    assert set(OBJECTS) == made_here
    assert len(METHODS) > 60


@pytest.mark.parametrize(("kind", "method"), METHODS)
async def test_what_is_right_is_sent(hold: AsyncHoldMQ, kind: type, method: str) -> None:
    function = getattr(OBJECTS[kind](hold), method)
    try:
        await called(function, Arguments(function))
    except SentError:
        return
    sends_nothing = {"channel", "session", "subscribe", "psubscribe", "ssubscribe", "pipeline", "store", "producer"}
    assert method in sends_nothing | {"start_replay", "resume", "follow", "queue", "execute"}


@pytest.mark.parametrize(("kind", "method"), METHODS)
async def test_what_is_of_the_wrong_kind_is_refused(hold: AsyncHoldMQ, kind: type, method: str) -> None:
    thing = OBJECTS[kind](hold)
    function = getattr(thing, method)
    before, wrong = state(thing), []
    for name, value, arguments in wrong_calls(function):
        try:
            await called(function, arguments)
        except ArgumentError as error:
            if "expected" not in str(error):
                wrong.append(f"{name}={value!r}: {error}")
        except SentError:
            wrong.append(f"{name}={value!r}: sent")
        except Exception as error:  # noqa: BLE001 - shown together with the others
            wrong.append(f"{name}={value!r}: {error!r}")
        else:
            wrong.append(f"{name}={value!r}: accepted")
        if state(thing) != before:
            wrong.append(f"{name}={value!r}: changed the object")
    assert wrong == []


@pytest.mark.parametrize("value", [None, 0, -1, "5", [], float("nan")])
def test_a_client_takes_a_patience_in_seconds(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"moving_timeout is .*; expected seconds above 0"):
        AsyncHoldMQ(Unsent(), moving_timeout=value)


def test_a_client_is_made_from_an_address() -> None:
    for url in (None, 5, b"redis://127.0.0.1", [], object()):
        with pytest.raises(ArgumentError, match=r"url is .*; expected str"):
            AsyncHoldMQ.from_url(url)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="cluster is None; expected True or False"):
        AsyncHoldMQ.from_url("redis://127.0.0.1", cluster=None)  # type: ignore[call-overload]
