"""What client and server agree on with a CONNECT: the client's requests, limited by the bridge's settings.

    mqtt.Connect, Settings ──► agree ──► Terms, or RefusedError with the reason code of the CONNACK

A pure function: no clock, no randomness.  The terms are those of MQTT 5.0 (section 3.1.2.11).  A client of 3.1.1 gets
the terms that its version implies.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdmq.core import mqtt
from holdmq.core.mqtt import PROTOCOL_LEVEL_5
from holdmq_bridge.base.reasons import Reason
from holdmq_bridge.process.settings import MAX_PACKET_ID, Settings

NO_LIMIT = 0
# Reserved prefixes of client ids, with their uses.
_RESERVED = {b"$share/": "queues of groups", b"link:": "sessions of links to other brokers"}


class RefusedError(Exception):
    """A CONNECT that is refused, with the reason code."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


WINDOWS = 8
"""With 4, one receiver of 50 publishers gets a fifth less; with 8 as much as without a bound."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a connection.

    Attributes:
        version: protocol level, 4 or 5.
        client_id: of the client, or assigned to it.
        is_assigned: the client id was assigned.
        clean: begin with a new session.
        expiry_s: how long the session outlives the connection.
        expiry_changed: the client asked for another expiry.
        keep_alive_s: of the client, or of the server; 0: none.
        keep_alive_changed: the client asked for another keep-alive.
        window: most unacknowledged messages to the client.
        alias_maximum_out: most topic aliases towards the client.
        max_packet_out: largest packet to the client; NO_LIMIT: any.
        is_bridge: the client is another broker (3.1.1 only).  Its subscriptions get No Local and Retain As Published,
            which it cannot ask for.
        response_information: prefix for response topics, if the client asked for it; else empty.
        session_kind: application or device, if the client named one; else empty.
        may_explain: any packet may have a reason string [MQTT-3.1.2-29].
    """

    version: int
    client_id: bytes
    is_assigned: bool
    clean: bool
    expiry_s: int
    expiry_changed: bool
    keep_alive_s: int
    keep_alive_changed: bool
    window: int
    alias_maximum_out: int = 0
    max_packet_out: int = NO_LIMIT
    response_information: bytes = b""
    is_bridge: bool = False
    session_kind: str = ""
    may_explain: bool = True

    @property
    def places(self) -> int:
        """Most messages that were handed to a fast client and not removed from its queue, as far as this process knows.

        Several windows: their acknowledgements may be on their way to the server while the client has the next one.
        The engine tells the server before it needs more than one (src/engine/places.c).
        """
        return min(WINDOWS * self.window, MAX_PACKET_ID)


def agree(connect: mqtt.Connect, settings: Settings, assigned_id: Callable[[], bytes]) -> Terms:
    """Agrees on terms, or refuses the CONNECT.

    Args:
        connect: the packet.
        settings: limits.
        assigned_id: makes an id for a client without one.

    Raises:
        RefusedError: the CONNECT asks for something that is not served.
    """
    if len(connect.client_id) > settings.max_client_id_bytes:
        size = len(connect.client_id)
        raise RefusedError(Reason.BAD_CLIENT_ID, f"a client id of {size} bytes, at most {settings.max_client_id_bytes}")
    for beginning, whose in _RESERVED.items():
        if connect.client_id.startswith(beginning):
            detail = f"a client id that begins with {beginning.decode()}: {whose} are named so"
            raise RefusedError(Reason.BAD_CLIENT_ID, detail)
    client_id = connect.client_id or assigned_id()
    is_assigned = not connect.client_id
    if connect.level == PROTOCOL_LEVEL_5:
        return _agree_5(connect, settings, client_id, is_assigned)
    expiry_s = 0 if connect.clean else settings.session_expiry_s
    return Terms(
        version=connect.level,
        client_id=client_id,
        is_assigned=is_assigned,
        clean=connect.clean,
        expiry_s=expiry_s,
        expiry_changed=False,
        keep_alive_s=connect.keep_alive_s,
        keep_alive_changed=False,
        window=settings.max_inflight,
        is_bridge=connect.bridge,
    )


def _agree_5(connect: mqtt.Connect, settings: Settings, client_id: bytes, is_assigned: bool) -> Terms:
    requested = connect.properties
    if requested.authentication_method is not None:
        raise RefusedError(Reason.BAD_AUTH_METHOD, "extended authentication is not supported")
    if requested.authentication_data is not None:
        raise RefusedError(Reason.PROTOCOL_ERROR, "authentication data without a method")
    requested_s = requested.session_expiry_interval or 0
    expiry_s = min(requested_s, settings.max_session_expiry_s)
    keep_alive_s = min(connect.keep_alive_s or settings.max_keep_alive_s, settings.max_keep_alive_s)
    return Terms(
        version=connect.level,
        client_id=client_id,
        is_assigned=is_assigned,
        clean=connect.clean,
        expiry_s=expiry_s,
        expiry_changed=expiry_s != requested_s,
        keep_alive_s=keep_alive_s,
        keep_alive_changed=keep_alive_s != connect.keep_alive_s,
        window=min(requested.receive_maximum or settings.max_inflight, settings.max_inflight),
        alias_maximum_out=min(requested.topic_alias_maximum or 0, settings.max_topic_alias),
        max_packet_out=requested.maximum_packet_size or NO_LIMIT,
        response_information=_response_information(client_id) if requested.request_response_information else b"",
        session_kind=_session_kind(requested.user_properties),
        may_explain=requested.request_problem_information != 0,
    )


def _session_kind(properties: Iterable[tuple[bytes, bytes]]) -> str:
    """The value of the user property session-kind; the last one counts."""
    kind = b""
    for name, value in properties:
        if name == b"session-kind":
            kind = value
    if kind not in (b"", b"application", b"device"):
        raise RefusedError(Reason.IMPLEMENTATION, f"session-kind is {kind[:80]!r}; expected application or device")
    return kind.decode()


_NOT_IN_A_LEVEL = {ord("/"): b"%2F", ord("+"): b"%2B", ord("#"): b"%23", ord("%"): b"%25"}


def _response_information(client_id: bytes) -> bytes:
    """`response/<client id>`, with the id escaped to be one level."""
    return b"response/" + b"".join(_NOT_IN_A_LEVEL.get(byte, bytes([byte])) for byte in client_id)
