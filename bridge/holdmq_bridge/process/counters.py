"""Counters of the process outside the engine: plain integers that only grow, with the names of the metrics.

Only the thread of the event loop writes them.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """One object for each process."""

    connections_accepted: int = 0
    connections_refused: int = 0  # above max_connections or connection_rate
    bytes_sent: int = 0
    sessions_opened: int = 0
    sessions_resumed: int = 0
    sessions_taken_over: int = 0
    keep_alive_expired: int = 0
    slow_clients_closed: int = 0
    connects_denied: int = 0  # by the authenticator
    connects_refused: int = 0  # for any reason
    connects_over_quota: int = 0  # the server has no room for the session (QUOTA)
    websockets_refused: int = 0  # requests: another origin, path or subprotocol, or no request at all
    websocket_faults: int = 0  # connections that broke the rules of WebSocket frames
    proxies_refused: int = 0  # connections without a PROXY header that is believed
    subscriptions_refused: int = 0  # filters
    replayed: int = 0  # messages of history for sessions here
    spans_exported: int = 0  # that the collector has taken
    spans_dropped: int = 0

    def as_dict(self) -> dict[str, int]:
        """The values by name."""
        return asdict(self)
