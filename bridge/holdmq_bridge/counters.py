"""What the process counted: plain integers that only grow, and a few that say how much there is now.

The names are those that the metrics will have.  Nobody but the event loop's thread writes them.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """All of the process's counters.  One object per process, handed to whoever counts."""

    connections_accepted: int = 0
    connections_refused: int = 0  # over max_connections
    sessions_opened: int = 0
    sessions_resumed: int = 0
    sessions_taken_over: int = 0
    packets_malformed: int = 0
    protocol_errors: int = 0
    keep_alive_expired: int = 0

    publishes_received: int = 0
    publishes_acknowledged: int = 0
    publishes_refused: int = 0  # refused by the server for good
    publishes_retried: int = 0
    publishes_dropped_qos0: int = 0  # from clients: in doubt or refused when the server was away

    messages_sent: int = 0
    messages_sent_again: int = 0  # with DUP
    messages_acknowledged: int = 0
    messages_dropped_qos0: int = 0  # to clients that read too slowly
    messages_unreadable: int = 0  # values in a queue that are no record
    acknowledgements_unknown: int = 0
    wills_published: int = 0

    commands_sent: int = 0
    pushes_received: int = 0
    server_connections: int = 0
    server_losses: int = 0

    def as_dict(self) -> dict[str, int]:
        """Name to value, for logs and metrics."""
        return asdict(self)
