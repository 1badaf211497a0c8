"""Rights that change while clients are paused: commands that were seen before the pause ended run after it, unseen."""

from collections.abc import Callable

import pytest

from tests.module.channels_support import MakeRaw, set_policies
from tests.support import RawClient, Server

MakeServer = Callable[..., Server]

CHANNELS = 4000  # so many take a while to be handed over to a pattern
PAUSE_MS = 700


def paused(server: Server, raw: MakeRaw) -> tuple[RawClient, RawClient]:
    """A client of `big` to whom held messages are being handed over, and an administrator."""
    client = server.client()
    set_policies(client, "*")
    client.execute_command("ACL", "SETUSER", "big", "on", ">p", "~*", "&*", "+@all")
    client.execute_command("ACL", "SETUSER", "low", "on", ">p", "resetkeys", "&*", "+@all")
    with client.pipeline(transaction=False) as together:
        for number in range(CHANNELS):
            together.publish(f"c{number}", bytes(3000))
        together.execute()
    one, admin = raw(3), raw(2)
    one.call("AUTH", "big", "p")
    one.send("PSUBSCRIBE", "c*")
    admin.call("CLIENT", "PAUSE", PAUSE_MS, "ALL")
    return one, admin


def reply_of_publish(one: RawClient) -> object:
    """Behind all that was handed over."""
    while not isinstance(reply := one.read(), int):
        pass
    return reply


@pytest.mark.parametrize("how", ["auth", "setuser"])
def test_what_a_paused_command_takes_away_is_not_remembered(fresh_server: MakeServer, how: str) -> None:
    server = fresh_server()
    opened: list[RawClient] = []

    def raw(protocol: int = 2) -> RawClient:
        opened.append(RawClient(server.port, protocol))
        return opened[-1]

    try:
        one, admin = paused(server, raw)
        if how == "auth":
            one.send("AUTH", "low", "p")
        else:
            admin.send("ACL", "SETUSER", "big", "resetkeys")
            assert admin.read() == "OK"  # the pause is over
        one.send("PUBLISH", "foreign", "x")
        assert reply_of_publish(one) == 0
        assert server.client().execute_command("CHANNEL.LEN", "foreign") == 0
    finally:
        for connection in opened:
            connection.close()
