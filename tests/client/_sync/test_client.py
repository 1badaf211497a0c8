# Generated from tests/client/_async/test_client.py by tools/generate_sync.py; change that file.
"""The wrapped client object: whichever it is, the same methods work; errors come as classes of both libraries."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import valkey
from redis.cluster import ClusterNode, RedisCluster

from holdmq import (
    CommandError,
    FencedError,
    HoldMQ,
    HoldMQError,
    ModuleMissingError,
    UnexpectedReplyError,
    WrongTypeError,
    commands,
)
from holdmq.commands import Command
from tests.client.support import message_of
from tests.support import Cluster, Server

LIBRARIES = [redis.Redis, valkey.Valkey]


@pytest.fixture
def wrap() -> Iterator[Callable[..., HoldMQ]]:
    """Wraps a client object, and closes it at the end."""
    clients: list[Any] = []

    def make(client: Any) -> HoldMQ:
        clients.append(client)
        return HoldMQ(client)

    yield make
    for client in clients:
        client.close()


def everything_works(hold: HoldMQ) -> None:
    """One call of each kind, with binary content."""
    binary = bytes(range(256))
    assert hold.channel("text").publish("grün") == 0
    assert hold.channel("text").last() in ("grün", "grün".encode())
    policy = hold.channel("text").policy()
    assert policy is not None
    assert policy.glob == "*"
    with hold.subscribe("text") as messages:
        message = messages.get(10)
        assert message is not None
        assert message.data in ("grün", "grün".encode())
    session = hold.session("gerät")
    session.open("owner", expiry=60)
    assert (session.add(binary)).packet_ids == (1,)
    assert [entry.value for entry in session.entries()] == [binary]
    assert session.subscribe("grün/+") == (True,)
    assert list(session.subscriptions()) == ["grün/+"]
    assert hold.topics.publish("grün/1", binary, qos=1, retain=True) == 1
    assert hold.topics.retained("#") == ("grün/1",)
    retained = hold.topics.retained_message("grün/1")
    assert retained is not None
    assert retained.payload == binary
    assert (session.info()).owner == "owner"
    assert hold.check() == ()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decoded", [False, True])
def test_any_client_object_works_in_any_mode(
    server: Server, wrap: Callable[..., HoldMQ], library: Any, protocol: int, decoded: bool
) -> None:
    hold = wrap(library(host="127.0.0.1", port=server.port, protocol=protocol, decode_responses=decoded))
    everything_works(hold)


def test_a_client_of_a_cluster_works(fresh_cluster: Callable[..., Cluster], wrap: Callable[..., HoldMQ]) -> None:
    cluster = fresh_cluster(3)
    hold = wrap(RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port) for node in cluster.nodes]))
    assert hold.supports()
    assert hold.check() == ()
    for number in range(8):  # over several nodes
        session = hold.session(f"device-{number}")
        session.open("owner", expiry=60)
        session.subscribe("weather/+")
        assert (session.add(b"x")).packet_ids == (1,)
    assert hold.topics.publish("weather/oslo", b"snow", qos=1) == 8
    for number in range(8):
        assert message_of((hold.session(f"device-{number}").fetch()).entries[-1]).payload == b"snow"
    pipeline = hold.pipeline()
    last = [pipeline.queue(commands.session_last(f"device-{number}")) for number in range(8)]
    pipeline.execute()
    assert [reply.result() for reply in last] == [2] * 8


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_error_is_one_of_both_libraries(server: Server, wrap: Callable[..., HoldMQ], library: Any) -> None:
    base = redis.ResponseError if library is LIBRARIES[0] else valkey.ResponseError
    hold = wrap(library(host="127.0.0.1", port=server.port))
    former = hold.session("device")
    former.open("former", expiry=60)
    hold.session("device").open("present", expiry=60)
    with pytest.raises(FencedError) as caught:
        former.touch()
    assert isinstance(caught.value, base)
    assert isinstance(caught.value, redis.ResponseError)
    assert "epoch" in str(caught.value).lower()
    pipeline = hold.pipeline()
    pipeline.queue(commands.session_touch("device", epoch=former.epoch))
    with pytest.raises(FencedError) as caught:
        pipeline.execute()
    assert isinstance(caught.value, base)


def test_what_the_server_itself_refuses_keeps_its_class(server: Server, client: redis.Redis) -> None:
    client.acl_setuser("narrow", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["other:*"])
    url = server.url.replace("redis://", "redis://narrow:secret@")
    with HoldMQ.from_url(url) as hold:
        with pytest.raises(redis.exceptions.NoPermissionError):
            hold.session("device").add(b"x")
        with pytest.raises(redis.exceptions.NoPermissionError, match="channel"):
            hold.topics.publish("weather", b"x")
        with pytest.raises(redis.exceptions.NoPermissionError, match="channel"):
            hold.topics.retained("#")


def test_a_server_without_the_module_is_reported_clearly(
    fresh_server: Callable[..., Server], connect: Callable[..., HoldMQ]
) -> None:
    hold = connect(fresh_server(module=False))
    assert not hold.supports()
    with pytest.raises(ModuleMissingError, match=r"--loadmodule .*holdmq\.so"):
        hold.channel("weather").publish("sunny")
    with pytest.raises(ModuleMissingError, match="--loadmodule"):
        with hold:
            pass
    with pytest.raises(ModuleMissingError, match="INFO"):
        hold.info()


def test_supports_names_single_commands(hold: HoldMQ) -> None:
    assert hold.supports()
    assert hold.supports("SESSION.ADD", "channel.last")
    assert not hold.supports("SESSION.ADD", "SESSION.FLY")


def test_info_is_the_section_of_the_module(hold: HoldMQ) -> None:
    info = hold.info()
    assert info
    assert all(name.startswith("holdmq_") for name in info)


def test_a_client_that_was_handed_in_stays_open(server: Server, wrap: Callable[..., HoldMQ]) -> None:
    hold = wrap(redis.Redis(host="127.0.0.1", port=server.port))
    with hold:
        pass
    assert hold.client.ping()


def test_a_connection_of_from_url_reports_whose_it_is(hold: HoldMQ, server: Server, client: redis.Redis) -> None:
    hold.require_module()
    names = [one["lib-name"] for one in client.client_list() if "holdmq" in one.get("lib-name", "")]
    knows_names = server.kind.version >= (7, 2)  # CLIENT SETINFO
    assert len(names) == (1 if knows_names else 0)


def test_something_that_is_not_a_client_is_refused() -> None:
    with pytest.raises(HoldMQError, match="expected a client object"):
        HoldMQ("redis://localhost")  # type: ignore[arg-type]


def test_a_pipeline_has_typed_replies_in_order(hold: HoldMQ) -> None:
    pipeline = hold.pipeline()
    added = pipeline.queue(commands.session_add("a", [b"x", b"y"]))
    published = pipeline.queue(commands.channel_publish("weather", "sunny"))
    last = pipeline.queue(commands.channel_last("weather"))
    with pytest.raises(HoldMQError, match="not been executed"):
        added.result()
    assert pipeline.execute() == [added, published, last]
    assert added.result().packet_ids == (1, 2)
    assert (published.result(), last.result()) == (0, b"sunny")
    assert pipeline.execute() == []


@pytest.mark.parametrize("transaction", [False, True])
def test_a_refused_command_does_not_stop_a_pipeline(hold: HoldMQ, client: redis.Redis, transaction: bool) -> None:
    client.set("{bad}_messages", "a string")
    pipeline = hold.pipeline(transaction=transaction)
    before = pipeline.queue(commands.session_add("a", [b"\xff"]))
    refused = pipeline.queue(commands.session_add("bad", [b"x"]))
    after = pipeline.queue(commands.session_fetch("a"))
    with pytest.raises(WrongTypeError):
        pipeline.execute()
    assert isinstance(refused.error, WrongTypeError)
    assert before.result().packet_ids == (1,)
    assert after.result().entries[0].value == b"\xff"
    pipeline.queue(commands.session_add("bad", [b"x"]))
    (reply,) = pipeline.execute(raise_on_error=False)
    assert isinstance(reply.error, WrongTypeError)


def test_a_transaction_needs_a_client_that_does_not_decode(connect: Callable[..., HoldMQ]) -> None:
    with pytest.raises(HoldMQError, match="decode_responses"):
        connect(decode_responses=True).pipeline(transaction=True)


def test_a_command_goes_into_a_pipeline_of_the_library_too(hold: HoldMQ) -> None:
    command = commands.session_add("a", [b"x"])
    pipeline = hold.client.pipeline()
    pipeline.set("stock", "value")
    pipeline.execute_command(*command.words, **command.options)
    _, reply = pipeline.execute()
    assert command.parse(reply).packet_ids == (1,)


def test_a_reply_of_another_form_is_an_error_of_its_own(hold: HoldMQ) -> None:
    strange = Command(("PING",), commands.session_info("a").parse)
    with pytest.raises(UnexpectedReplyError, match="expected a map"):
        hold.execute(strange)


def test_a_command_with_bad_words_is_refused_by_the_server(hold: HoldMQ) -> None:
    wrong = Command(("SESSION.ADD", "no-braces", "x"), commands.session_last("a").parse)
    with pytest.raises(CommandError, match="no-braces"):
        hold.execute(wrong)
