"""What client and server agree upon with a CONNECT: the client's wishes, cut to the bridge's settings.

    mqtt.Connect, Settings ──► agree ──► Terms, or RefusedError with the reason code of the CONNACK

A pure function: no clock, no randomness (an id for a client that has none comes in as an argument).  The numbers are
MQTT 5.0's (section 3.1.2.11); a client of 3.1.1 gets the terms that its version implies.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdmq.core import mqtt
from holdmq.core.mqtt import PROTOCOL_LEVEL_5
from holdmq_bridge.base.reasons import Reason
from holdmq_bridge.process.settings import Settings

NO_LIMIT = 0
# The beginnings of client ids that are taken, and by whom.
_RESERVED = {b"$share/": "queues of groups", b"link:": "sessions of links to other brokers"}


class RefusedError(Exception):
    """The CONNECT is refused."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Terms:
    """What was agreed.

    Attributes:
        version: protocol level, 4 or 5.
        client_id: of the client, or the one that it was given.
        assigned: it was given.
        clean: begin with a new session.
        expiry_s: how long the session outlives the connection.
        expiry_changed: not what the client asked for.
        keep_alive_s: of the client, or the server's; 0: none.
        keep_alive_changed: not what the client asked for.
        window: messages to the client without an acknowledgement.
        alias_maximum_out: topic aliases that may be used towards it.
        max_packet_out: size of a packet to the client; NO_LIMIT: none.
        bridge: it is another broker's (3.1.1 only): its subscriptions are without its own messages, and retained ones
            keep their flag, as 5.0 has options for.
        response_information: what it asked for, to make response topics of; empty: it did not.
        session_kind: application or device, if it said so; else empty.
        explained: reason strings may stand on any packet that can have one [MQTT-3.1.2-29].
    """

    version: int
    client_id: bytes
    assigned: bool
    clean: bool
    expiry_s: int
    expiry_changed: bool
    keep_alive_s: int
    keep_alive_changed: bool
    window: int
    alias_maximum_out: int = 0
    max_packet_out: int = NO_LIMIT
    response_information: bytes = b""
    bridge: bool = False
    session_kind: str = ""
    explained: bool = True


def agree(connect: mqtt.Connect, settings: Settings, assigned_id: Callable[[], bytes]) -> Terms:
    """The terms of this connection.

    Raises:
        RefusedError: there are none.
    """
    if len(connect.client_id) > settings.max_client_id_bytes:
        size = len(connect.client_id)
        raise RefusedError(Reason.BAD_CLIENT_ID, f"a client id of {size} bytes, at most {settings.max_client_id_bytes}")
    for beginning, whose in _RESERVED.items():
        if connect.client_id.startswith(beginning):
            detail = f"a client id that begins with {beginning.decode()}: {whose} are named so"
            raise RefusedError(Reason.BAD_CLIENT_ID, detail)
    client_id = connect.client_id or assigned_id()
    assigned = not connect.client_id
    if connect.level == PROTOCOL_LEVEL_5:
        return _agree_5(connect, settings, client_id, assigned)
    expiry_s = 0 if connect.clean else settings.session_expiry_s
    return Terms(
        version=connect.level,
        client_id=client_id,
        assigned=assigned,
        clean=connect.clean,
        expiry_s=expiry_s,
        expiry_changed=False,
        keep_alive_s=connect.keep_alive_s,
        keep_alive_changed=False,
        window=settings.max_inflight,
        bridge=connect.bridge,
    )


def _agree_5(connect: mqtt.Connect, settings: Settings, client_id: bytes, assigned: bool) -> Terms:
    asked = connect.properties
    if asked.authentication_method is not None:
        raise RefusedError(Reason.BAD_AUTH_METHOD, "extended authentication is not supported")
    if asked.authentication_data is not None:
        raise RefusedError(Reason.PROTOCOL_ERROR, "authentication data without a method")
    asked_s = asked.session_expiry_interval or 0
    expiry_s = min(asked_s, settings.max_session_expiry_s)
    keep_alive_s = min(connect.keep_alive_s or settings.max_keep_alive_s, settings.max_keep_alive_s)
    return Terms(
        version=connect.level,
        client_id=client_id,
        assigned=assigned,
        clean=connect.clean,
        expiry_s=expiry_s,
        expiry_changed=expiry_s != asked_s,
        keep_alive_s=keep_alive_s,
        keep_alive_changed=keep_alive_s != connect.keep_alive_s,
        window=min(asked.receive_maximum or settings.max_inflight, settings.max_inflight),
        alias_maximum_out=min(asked.topic_alias_maximum or 0, settings.max_topic_alias),
        max_packet_out=asked.maximum_packet_size or NO_LIMIT,
        response_information=_response_information(client_id) if asked.request_response_information else b"",
        session_kind=_session_kind(asked.user_properties),
        explained=asked.request_problem_information != 0,
    )


def _session_kind(properties: Iterable[tuple[bytes, bytes]]) -> str:
    """What the user property session-kind says; the last counts."""
    kind = b""
    for name, value in properties:
        if name == b"session-kind":
            kind = value
    if kind not in (b"", b"application", b"device"):
        raise RefusedError(Reason.IMPLEMENTATION, f"session-kind is {kind[:80]!r}: expected application or device")
    return kind.decode()


_NOT_IN_A_LEVEL = {ord("/"): b"%2F", ord("+"): b"%2B", ord("#"): b"%23", ord("%"): b"%25"}


def _response_information(client_id: bytes) -> bytes:
    """What the client may put its response topics under: its id, made one level, behind `response/`."""
    return b"response/" + b"".join(_NOT_IN_A_LEVEL.get(byte, bytes([byte])) for byte in client_id)
