"""The harness of the tests: real servers, real bridges, raw connections, waiting with a bound.

    server.client()                          redis.Redis to a server under test
    eventually(lambda: client.llen("ch") == 1)
    raw = RawClient(server.port, protocol=3) exact order of bytes
    server.kill(); server.restart()          as a crash would, and back with the data that it kept
    clock.step(-10**6)                       the time of servers that are started with its environment

The fixtures that start and stop all of it are in tests/conftest.py.
"""

from tests.support.bridge import BridgeProcess
from tests.support.clock import Clock
from tests.support.disk import SmallDisk, small_disk
from tests.support.eventually import eventually
from tests.support.ports import Port, reserve_port
from tests.support.raw import Push, RawClient, ReplyError, Status
from tests.support.sentinel import SentinelProcess
from tests.support.server import Cluster, Server
from tests.support.servers import ServerKind, embedded_kinds, selected_kinds

__all__ = [
    "BridgeProcess",
    "Clock",
    "Cluster",
    "Port",
    "Push",
    "RawClient",
    "ReplyError",
    "SentinelProcess",
    "Server",
    "ServerKind",
    "SmallDisk",
    "Status",
    "embedded_kinds",
    "eventually",
    "reserve_port",
    "selected_kinds",
    "small_disk",
]
