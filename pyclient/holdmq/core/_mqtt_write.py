"""Encodes a packet from its fields, and provides the memory for it.

Packets for 3.1.1 are written without properties, and without most reason codes.
"""

import threading

from holdmq.core._binding import CData, ffi, lib
from holdmq.core._mqtt_errors import InvalidPacketError
from holdmq.core._mqtt_packets import PROTOCOL_LEVEL, PROTOCOL_LEVEL_5, PacketType
from holdmq.core._mqtt_properties import NO_PROPERTIES, Properties, encode_properties

__all__ = ["out_of", "scratch", "write"]

_SCRATCH_BYTES = 4096  # packets up to this size are encoded without an allocation


class _Scratch(threading.local):
    """Memory for results of C, separate in each thread; `text` is the memory of `out`."""

    def __init__(self) -> None:
        self.text = ffi.new("char[]", _SCRATCH_BYTES)
        self.out = ffi.cast("uint8_t *", self.text)
        self.publish = ffi.new("hmq_mqtt_packet *", {"type": PacketType.PUBLISH})


scratch = _Scratch()


def out_of(size: int) -> tuple[CData, CData]:
    """Memory of `size` bytes, to write as `uint8_t *` and to read as `char *`."""
    if size <= _SCRATCH_BYTES:
        return scratch.out, scratch.text
    text = ffi.new("char[]", size)
    return ffi.cast("uint8_t *", text), text


def write(
    packet_type: PacketType,
    *,
    version: int = PROTOCOL_LEVEL,
    payload: bytes = b"",
    topic: bytes = b"",
    properties: Properties = NO_PROPERTIES,
    **fields: object,
) -> bytes:
    more = encode_properties(properties, packet_type) if version == PROTOCOL_LEVEL_5 else b""
    parts = {"payload": payload, "topic": topic, "properties": more}
    held = {name: ffi.from_buffer("uint8_t[]", part) for name, part in parts.items()}
    described = {name: (held[name], len(part)) for name, part in parts.items()}
    wrong = f"a field of the {packet_type.name} is out of its range for protocol level {version}: {fields}"
    try:
        packet = ffi.new("hmq_mqtt_packet *", {"type": packet_type, **described, **fields})
    except OverflowError as error:
        raise InvalidPacketError(wrong) from error
    size = lib.hmq_mqtt_size(packet, version)
    if size == 0:
        raise InvalidPacketError(wrong)
    out, text = out_of(size)
    return ffi.unpack(text, lib.hmq_mqtt_encode(packet, version, out, size))
