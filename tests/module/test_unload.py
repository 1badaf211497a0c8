"""The end of the module: a server that stops unloads it without a word; a running server keeps it and says why."""

from collections.abc import Callable

import pytest
import redis

from tests.module.sessions_support import Session, Will, payloads
from tests.support import Server, eventually

WHY = "holdmq cannot be unloaded: set holdmq.intercept to no to switch it off, or restart the server without it"


def test_a_stop_is_clean(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server()
    server.stop()
    log = server.log_text()
    assert "ready to exit" in log
    assert "Failed to unload" not in log
    assert "not fired" not in log


@pytest.mark.parametrize("tried", [False, True], ids=["", "after it was tried"])
@pytest.mark.parametrize("by_command", [False, True], ids=["signal", "SHUTDOWN"])
def test_a_stop_in_use_is_clean(fresh_server: Callable[..., Server], tried: bool, by_command: bool) -> None:
    server = fresh_server()
    client = server.client()
    client.publish("ch", "held")
    Session(client).subscribe(("a/#", 1))
    eventually(lambda: client.info("holdmq")["holdmq_turns_heard"] > 0, what="a module that follows")
    if tried:
        with pytest.raises(redis.ResponseError):
            client.execute_command("MODULE", "UNLOAD", "holdmq")
    if by_command:
        client.shutdown(nosave=True)
        eventually(lambda: not server.process.running, what="the end of the server")
    else:
        server.stop()
    log = server.log_text()
    assert "ready to exit" in log
    assert log.count("Error unloading module") <= tried
    assert "not fired" not in log
    assert log.count(WHY) == tried


def test_unload_is_refused_and_the_log_says_why(server: Server, client: redis.Redis) -> None:
    before = len(server.log_text())
    with pytest.raises(redis.ResponseError) as refused:
        client.execute_command("MODULE", "UNLOAD", "holdmq")
    assert "timer" not in str(refused.value)
    eventually(lambda: WHY in server.log_text()[before:], what="the reason in the log")
    assert client.publish("still-on", "x") == 0
    assert client.lrange("still-on", 0, -1) == [b"x"]


def test_the_clock_continues_however_often_unload_is_tried(client: redis.Redis) -> None:
    heir, session = Session(client, "{heir}"), Session(client)
    heir.subscribe(("will/#", 1))
    epoch = session.open(will=Will("will/c", "gone", 1, delay=1), expiry=60).epoch
    session.close(epoch, will=True)

    def published_meanwhile() -> bool:
        with pytest.raises(redis.ResponseError):
            client.execute_command("MODULE", "UNLOAD", "holdmq")
        return payloads(heir.fetch().entries) == [b"gone"]

    assert heir.fetch().entries == []
    eventually(published_meanwhile, what="a will that is published while unloading is tried")
