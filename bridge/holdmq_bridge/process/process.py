"""What every part of one bridge process shares: settings, event loop, engine, counters, wheel, clock and name.

The process holds nothing that cannot be lost: sessions, queues, subscriptions, wills and retained messages are the
server's.  Several processes on one server are one broker.  The session's epoch and inbox channel tie them together.
"""

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable

from holdmq.core.engine import MOST_LINKS, Engine, EngineSettings
from holdmq_bridge.base.backoff import Backoff
from holdmq_bridge.process.counters import Counters
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.process.slices import Slices
from holdmq_bridge.process.wheel import Wheel

_NEVER_MS = 0xFFFF_FFFF  # 49 days


class Process:
    """Create it inside a running event loop.

    Args:
        settings: of the bridge.
        flush: writes the engine's output to the server and to clients, and sets `flush_is_due` to False.
        is_cluster: the engine has a link for each node of a cluster.

    Attributes:
        flush_is_due: whether `flush` will run later in this iteration of the loop.
        handshakes: connections over TLS, or through a proxy, that are not clients yet.
        is_draining: whether the process accepts no connections any more, and ends its clients.
        is_stopping: whether the process is shutting down.
    """

    __slots__ = (
        "_flush",
        "counters",
        "engine",
        "flush_is_due",
        "handshakes",
        "is_draining",
        "is_stopping",
        "loop",
        "name",
        "settings",
        "slices",
        "started_at",
        "wheel",
    )

    def __init__(self, settings: Settings, flush: Callable[[], None], *, is_cluster: bool = False) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.started_at = time.time()
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.engine = Engine(_engine_settings(settings, is_cluster=is_cluster))
        self.wheel = Wheel()
        self.slices = Slices()
        self.flush_is_due = False
        self.is_draining = False
        self.is_stopping = False
        self.handshakes = 0
        self._flush = flush

    @staticmethod
    def now_ms() -> int:
        """The engine's clock."""
        return time.time_ns() // 1_000_000

    def wake(self) -> None:
        """Makes `flush` run once, after everything that arrived in this iteration of the loop."""
        if not self.flush_is_due:
            self.flush_is_due = True
            self.loop.call_soon(self._flush)

    def new_backoff(self) -> Backoff:
        """Pauses between attempts, by the settings."""
        return Backoff(self.settings.retry_first_s, self.settings.retry_max_s, random.uniform)


def _engine_settings(settings: Settings, *, is_cluster: bool) -> EngineSettings:
    return EngineSettings(
        max_packet_bytes=settings.max_packet_bytes,
        max_connect_bytes=settings.max_connect_bytes,
        max_filters=settings.max_filters,
        max_user_properties=settings.max_user_properties,
        max_user_property_bytes=settings.max_user_property_bytes,
        max_unread_connects=settings.max_unread_connects,
        max_client_outstanding=settings.max_client_outstanding,
        max_client_outstanding_bytes=settings.max_client_outstanding_bytes,
        max_outstanding=settings.max_outstanding,
        max_outstanding_bytes=settings.max_outstanding_bytes,
        max_ready=settings.max_ready,
        max_ready_bytes=settings.max_ready_bytes,
        max_fetches=settings.max_fetches,
        max_output_bytes=settings.write_buffer_bytes,
        message_expiry_s=settings.message_expiry_s,
        max_message_expiry_s=settings.max_message_expiry_s,
        retry_first_ms=_milliseconds(settings.retry_first_s),
        retry_most_ms=_milliseconds(settings.retry_max_s),
        wait_replicas=settings.wait_replicas,
        wait_timeout_ms=_milliseconds(settings.wait_timeout_s),
        retry_total_ms=_NEVER_MS if settings.unserved_publisher == "wait" else _milliseconds(settings.retry_total_s),
        links=MOST_LINKS if is_cluster else 1,
        cluster=is_cluster,
        inbox_seed=(secrets.randbits(64), secrets.randbits(64)),
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
