"""What the process counted beside the engine: plain integers that only grow.

The names are those of the metrics.  Nobody but the event loop's thread writes them.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """One object per process, handed to whoever counts."""

    connections_accepted: int = 0
    connections_refused: int = 0  # over max_connections, or in too quick a succession
    bytes_sent: int = 0
    sessions_opened: int = 0
    sessions_resumed: int = 0
    sessions_taken_over: int = 0
    keep_alive_expired: int = 0
    slow_clients_closed: int = 0
    connects_denied: int = 0  # by the authenticator
    connects_refused: int = 0  # for whatever reason
    connects_over_quota: int = 0  # the server has no room for the session (QUOTA)
    websockets_refused: int = 0  # requests: another origin, path or subprotocol, or no request at all
    websocket_faults: int = 0  # connections that broke the rules of frames
    proxies_refused: int = 0  # connections without a PROXY header that is believed
    subscriptions_refused: int = 0  # filters
    replayed: int = 0  # messages of history for sessions here

    def as_dict(self) -> dict[str, int]:
        """Name to value, for logs and metrics."""
        return asdict(self)
