"""The $SYS/broker topics: sums over all processes, which one process publishes as retained messages.

    every process      HINCRBY by what it counted since its last report; its own levels in a string that expires
    the lease's owner  reads both and publishes the sums

Keys (in one slot of a cluster; used for nothing else)

    {holdmq:sys}:totals       hash, counters of all processes ever; `maximum`: most clients at the same time
    {holdmq:sys}:names        sorted set, processes by the time of their last report
    {holdmq:sys}:<process>    string, its levels as JSON, expires after three intervals
    {holdmq:sys}:lease        string, the process that publishes, expires after three intervals

The topics are Mosquitto's, with the same meaning.  While the server is away nothing is reported.  The next report
includes what was counted then.
"""

import json
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

from holdmq_bridge.base.command import Reply
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.version import installed_version
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.monitoring.metrics import parse_info
from holdmq_bridge.server.calls import OnReply
from holdmq_bridge.server.servers import link_for

if TYPE_CHECKING:
    import asyncio

    from holdmq_bridge.base.command import Argument

log = Log("sys")

_PREFIX = "{holdmq:sys}:"
_TOTALS, _NAMES, _LEASE = _PREFIX + "totals", _PREFIX + "names", _PREFIX + "lease"
_INTERVALS = 3

# Counters to sum up, by their name in the totals.
_COUNTED = {
    "messages_received": ("publishes_received",),
    "messages_sent": ("messages_sent",),
    "messages_dropped": (
        "messages_dropped_qos0",
        "messages_dropped_oversized",
        "messages_dropped_expired",
        "messages_denied",
        "publishes_dropped_qos0",
    ),
    "packets_received": ("packets_received",),
    "packets_sent": ("packets_sent",),
    "bytes_received": ("bytes_received",),
    "bytes_sent": ("bytes_sent",),
    "connections": ("connections_accepted",),
}


class SysTopics:
    """One for each process.  `start` it inside the event loop, and `stop` it in the end."""

    def __init__(self, bridge: Bridge, interval_s: float) -> None:
        self._bridge = bridge
        self._interval_s = interval_s
        self._reported = dict.fromkeys(_COUNTED, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._expires_s = max(1, round(interval_s * _INTERVALS))

    def start(self) -> None:
        """Begins to report."""
        self._timer = self._bridge.process.loop.call_later(self._interval_s, self._report)

    def stop(self) -> None:
        """Reports no more, and deletes the levels of this process."""
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._send("DEL", _PREFIX + self._bridge.process.name)
            self._send("ZREM", _NAMES, self._bridge.process.name)

    @property
    def _link(self) -> int | None:
        """The link of the server that has the keys, if it is up."""
        return link_for(self._bridge.servers, _NAMES.encode())

    def _send(self, *arguments: str | int | bytes) -> None:
        self._ask(arguments, _log_error)

    def _ask(self, arguments: "tuple[Argument, ...]", on_reply: OnReply) -> None:
        """Asks the server that has the keys.  Nothing is called if it is lost."""
        link = self._link
        if link is not None:
            self._bridge.calls.call(arguments, on_reply, link)

    # ---- every process ---------------------------------------------------------------------------------------------

    def _report(self) -> None:
        bridge = self._bridge
        self._timer = bridge.process.loop.call_later(self._interval_s, self._report)
        if self._link is None:
            return
        counted = bridge.counted()
        for name, sources in _COUNTED.items():
            now = sum(counted[source] for source in sources)
            if now > self._reported[name]:
                self._send("HINCRBY", _TOTALS, name, now - self._reported[name])
                self._reported[name] = now
        levels = {"connected": len(bridge.clients), "uptime_s": int(time.time() - bridge.process.started_at)}
        self._send("SET", _PREFIX + bridge.process.name, json.dumps(levels), "EX", self._expires_s)
        self._send("ZADD", _NAMES, int(time.time()), bridge.process.name)
        self._ask(("SET", _LEASE, bridge.process.name, "NX", "GET", "EX", self._expires_s), self._on_lease)

    # ---- one of them -----------------------------------------------------------------------------------------------

    def _on_lease(self, holder: Reply) -> None:
        if holder is not None and holder != self._bridge.process.name.encode():
            return
        self._send("EXPIRE", _LEASE, self._expires_s)
        self._send("ZREMRANGEBYSCORE", _NAMES, "-inf", int(time.time()) - self._expires_s)
        self._ask(("ZRANGE", _NAMES, 0, -1), self._on_names)

    def _on_names(self, names: Reply) -> None:
        if isinstance(names, hiredis.ReplyError) or not names:
            _log_error(names)
            return
        gathered: dict[int, Reply] = {}
        link = self._link
        if link is None:
            return
        questions: list[tuple[int, tuple[Any, ...]]] = [
            (link, ("HGETALL", _TOTALS)),
            (link, ("MGET", *(_PREFIX.encode() + name for name in names))),
            *((server, ("INFO", "holdmq")) for server in self._bridge.servers.up()),
        ]

        def answered(at: int, reply: Reply) -> None:
            gathered[at] = reply
            if len(gathered) == len(questions):
                totals, processes, *servers = (gathered[at] for at in sorted(gathered))
                self._publish(totals, processes, servers)

        for at, (server, question) in enumerate(questions):
            self._bridge.calls.call(question, partial(answered, at), server)

    def _publish(self, totals: Reply, processes: Reply, servers: list[Reply]) -> None:
        for reply in (totals, processes, *servers):
            if isinstance(reply, hiredis.ReplyError):
                _log_error(reply)
                return
        levels = [json.loads(process) for process in processes if process is not None]
        total = {name: int(totals.get(name.encode(), 0)) for name in _COUNTED}
        most, connected = int(totals.get(b"maximum", 0)), sum(process["connected"] for process in levels)
        if connected > most:
            most = connected
            self._send("HSET", _TOTALS, "maximum", most)
        texts = [info.decode() if isinstance(info, bytes) else str(info) for info in servers]
        for topic, value in {**_figures(total, levels, texts), "clients/maximum": str(most)}.items():
            self._publish_one(f"$SYS/broker/{topic}", value)

    def _publish_one(self, topic: str, value: str) -> None:
        """In a cluster at all nodes: each has its own sessions, and one keeps the retained message."""
        servers = self._bridge.servers
        command = ("TOPIC.PUBLISH", topic, value, "QOS", 0, "RETAIN", "TTL", self._expires_s)
        if not servers.is_cluster:
            self._send(*command)
            return
        ranges: dict[int, list[int]] = {}
        for first, last, link in servers.slots():
            if link is not None and servers.is_up(link):
                ranges.setdefault(link, []).extend((first, last))
        for link, ends in ranges.items():
            self._bridge.calls.call((*command, "SLOTS", len(ends) // 2, *ends), _log_error, link)


def _figures(total: dict[str, int], levels: list[dict[str, int]], infos: list[str]) -> dict[str, str]:
    """Values by topic below $SYS/broker/, with Mosquitto's names.  Those of several nodes are summed up."""
    server: Counter[str] = Counter()
    for info in infos:
        server.update({name: int(value.number) for name, value in parse_info(info)})
    connected = sum(process["connected"] for process in levels)
    figures: dict[str, Any] = {
        "version": f"HoldMQ {installed_version()}",
        "uptime": f"{max(process['uptime_s'] for process in levels)} seconds" if levels else "0 seconds",
        "clients/connected": connected,
        "clients/total": max(connected, int(server.get("sessions_subscribed", 0))),
        "processes": len(levels),
        "connections/total": total["connections"],
        "messages/received": total["packets_received"],
        "messages/sent": total["packets_sent"],
        "publish/messages/received": total["messages_received"],
        "publish/messages/sent": total["messages_sent"],
        "publish/messages/dropped": total["messages_dropped"],
        "bytes/received": total["bytes_received"],
        "bytes/sent": total["bytes_sent"],
        "subscriptions/count": int(server.get("filters", 0)),
        "retained messages/count": int(server.get("retained_topics", 0)),
    }
    return {topic: str(value) for topic, value in figures.items()}


def _log_error(reply: Reply) -> None:
    if isinstance(reply, hiredis.ReplyError):
        log.warning("$SYS topics cannot be published", error=reply)
