"""Errors of packets: one that arrived (ProtocolError), or one that cannot be encoded (InvalidPacketError)."""

from holdmq.core._binding import ffi, lib

__all__ = ["InvalidPacketError", "ProtocolError"]


class InvalidPacketError(ValueError):
    """A packet cannot be encoded: a field is out of its range."""


class ProtocolError(ValueError):
    """The other side sent bytes that MQTT forbids. The text names the statement of the standard.

    Attributes:
        code: the core's number for the fault (`hmq_mqtt_error` in src/mqtt/mqtt.h).
        connack_code: 3.1.1: return code of the CONNACK that a server must send before it closes the connection (1:
            protocol level, 2: client id), 0: close without one.
        reason_code: 5.0: reason code of the CONNACK or DISCONNECT that a server sends before it closes the connection.
        level: the protocol level of a refused CONNECT; 0 for another packet, or no MQTT. From 5 on the answer is
            that of MQTT 5.0.
    """

    def __init__(self, code: int, level: int = 0) -> None:
        self.code = code
        self.level = level
        self.connack_code = int(lib.hmq_mqtt_error_connack(code))
        self.reason_code = int(lib.hmq_mqtt_error_reason(code))
        super().__init__(ffi.string(lib.hmq_mqtt_error_text(code)).decode())

    def __reduce__(self) -> tuple[type["ProtocolError"], tuple[int, int]]:
        return type(self), (self.code, self.level)
