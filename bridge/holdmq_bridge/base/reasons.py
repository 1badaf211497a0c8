"""Reason codes of MQTT 5.0, the return codes of 3.1.1 for them, and the reasons why connections end.

MQTT 5.0 table 2-6 has the codes.  In 3.1.1 a refused CONNECT has one of five return codes (3.1.1 table 3.1), and every
other refusal closes the connection.
"""

from enum import Enum, IntEnum


class Reason(IntEnum):
    """Reason codes that this server sends or acts on."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION = 0x83
    UNSUPPORTED_VERSION = 0x84
    BAD_CLIENT_ID = 0x85
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTH_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    TAKEN_OVER = 0x8E
    BAD_TOPIC_FILTER = 0x8F
    BAD_TOPIC_NAME = 0x90
    PACKET_ID_IN_USE = 0x91
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    BAD_TOPIC_ALIAS = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE = 0x98
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    CONNECTION_RATE_EXCEEDED = 0x9F


# The same CONNECT may be accepted a moment later.
TEMPORARY = frozenset({Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY, Reason.CONNECTION_RATE_EXCEEDED})

# MQTT 3.1.1 table 3.1
RETURN_BAD_VERSION, RETURN_BAD_CLIENT_ID, RETURN_UNAVAILABLE, RETURN_BAD_CREDENTIALS, RETURN_NOT_AUTHORIZED = range(
    1, 6
)

_RETURN_CODES = {
    Reason.UNSUPPORTED_VERSION: RETURN_BAD_VERSION,
    Reason.BAD_CLIENT_ID: RETURN_BAD_CLIENT_ID,
    Reason.BAD_CREDENTIALS: RETURN_BAD_CREDENTIALS,
    Reason.BAD_AUTH_METHOD: RETURN_BAD_CREDENTIALS,
    Reason.NOT_AUTHORIZED: RETURN_NOT_AUTHORIZED,
    Reason.BANNED: RETURN_NOT_AUTHORIZED,
}


def return_code(reason: int) -> int:
    """The return code of 3.1.1 for a reason code; server unavailable (3) if there is no better one."""
    return _RETURN_CODES.get(Reason(reason), RETURN_UNAVAILABLE) if reason else 0


class Ending(Enum):
    """Why a connection ended: a text for the logs, and the reason code of the DISCONNECT (None: no DISCONNECT).

    Only DISCONNECT removes the will [MQTT-3.14.4-3].
    """

    DISCONNECT = ("the client disconnected", None)
    DISCONNECT_WITH_WILL = ("the client disconnected and asked for its will", None)
    LOST = ("the connection was lost", None)
    REFUSED = ("the CONNECT was refused", None)
    UNAVAILABLE = ("the CONNECT temporarily cannot be served", None)
    NO_CONNECT = ("no CONNECT in time", None)
    SLOW = ("the client reads too slowly", None)
    SILENT = ("the client was silent for one and a half keep-alives", Reason.KEEP_ALIVE_TIMEOUT)
    MALFORMED = ("a malformed packet", Reason.MALFORMED)
    PROTOCOL = ("a protocol error", Reason.PROTOCOL_ERROR)
    UNANSWERABLE = ("the answer is larger than the client takes", Reason.PACKET_TOO_LARGE)
    TAKEN_OVER = ("the session was taken over", Reason.TAKEN_OVER)
    GONE = ("the server has lost the session", Reason.IMPLEMENTATION)
    DROPPED = ("the session was dropped", Reason.ADMINISTRATIVE)
    NOT_ALLOWED = ("the client is no longer allowed to connect", Reason.NOT_AUTHORIZED)
    KICKED = ("the client was disconnected by an administrator", Reason.ADMINISTRATIVE)
    UNSERVED = ("the server was away too long to store the client's messages", Reason.SERVER_BUSY)
    SERVER_ERROR = ("the server refused a command", Reason.IMPLEMENTATION)
    DRAINED = ("the bridge is draining", Reason.USE_ANOTHER_SERVER)
    SHUTDOWN = ("the bridge is shutting down", Reason.SERVER_SHUTTING_DOWN)
    DEFECT = ("a defect of the bridge", Reason.UNSPECIFIED)

    def __init__(self, text: str, reason: Reason | None) -> None:
        self.text = text
        self.reason = reason

    @property
    def loses_session(self) -> bool:
        """Whether this connection no longer owns the session, and so may not close it."""
        return self in (Ending.TAKEN_OVER, Ending.GONE, Ending.DROPPED)
