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
from typing import TYPE_CHECKING, Any

import hiredis

from holdmq_bridge.base.command import Reply
from holdmq_bridge.base.logs import Log
from holdmq_bridge.base.version import installed_version
from holdmq_bridge.broker.bridge import Bridge
from holdmq_bridge.monitoring.metrics import parse_info

if TYPE_CHECKING:
    import asyncio

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
        if self._bridge.servers.any_up:
            self._send("DEL", _PREFIX + self._bridge.process.name)
            self._send("ZREM", _NAMES, self._bridge.process.name)

    def _send(self, *arguments: str | int | bytes) -> None:
        self._bridge.calls.call(arguments, _log_error)

    # ---- every process ---------------------------------------------------------------------------------------------

    def _report(self) -> None:
        bridge = self._bridge
        self._timer = bridge.process.loop.call_later(self._interval_s, self._report)
        if not bridge.servers.any_up:
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
        bridge.calls.call(("SET", _LEASE, bridge.process.name, "NX", "GET", "EX", self._expires_s), self._on_lease)

    # ---- one of them -----------------------------------------------------------------------------------------------

    def _on_lease(self, holder: Reply) -> None:
        if holder is not None and holder != self._bridge.process.name.encode():
            return
        self._send("EXPIRE", _LEASE, self._expires_s)
        self._send("ZREMRANGEBYSCORE", _NAMES, "-inf", int(time.time()) - self._expires_s)
        self._bridge.calls.call(("ZRANGE", _NAMES, 0, -1), self._on_names)

    def _on_names(self, names: Reply) -> None:
        if isinstance(names, hiredis.ReplyError) or not names:
            _log_error(names)
            return
        gathered: list[Reply] = []

        def answered(reply: Reply) -> None:
            gathered.append(reply)
            if len(gathered) == len(questions):
                self._publish(*gathered)

        questions: list[tuple[Any, ...]] = [
            ("HGETALL", _TOTALS),
            ("MGET", *(_PREFIX.encode() + name for name in names)),
            ("INFO", "holdmq"),
        ]
        for question in questions:
            self._bridge.calls.call(question, answered)

    def _publish(self, totals: Reply, processes: Reply, info: Reply) -> None:
        if any(isinstance(reply, hiredis.ReplyError) for reply in (totals, processes, info)):
            _log_error(next(reply for reply in (totals, processes, info) if isinstance(reply, hiredis.ReplyError)))
            return
        levels = [json.loads(process) for process in processes if process is not None]
        total = {name: int(totals.get(name.encode(), 0)) for name in _COUNTED}
        most, connected = int(totals.get(b"maximum", 0)), sum(process["connected"] for process in levels)
        if connected > most:
            most = connected
            self._send("HSET", _TOTALS, "maximum", most)
        text = info.decode() if isinstance(info, bytes) else str(info)
        for topic, value in {**_figures(total, levels, text), "clients/maximum": str(most)}.items():
            self._send("TOPIC.PUBLISH", f"$SYS/broker/{topic}", value, "QOS", 0, "RETAIN", "TTL", self._expires_s)


def _figures(total: dict[str, int], levels: list[dict[str, int]], info: str) -> dict[str, str]:
    """Values by topic below $SYS/broker/, with Mosquitto's names."""
    server = {name: value.number for name, value in parse_info(info)}
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
