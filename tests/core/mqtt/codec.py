"""What the tests of both versions ask of the MQTT codec."""

from collections.abc import Callable, Iterable
from typing import Any

from holdmq.core import mqtt
from holdmq.core._binding import ffi, lib
from holdmq.core.mqtt import Packet, Pingreq, ProtocolError
from tests.core.support import heap_bytes


def wire(text: str) -> bytes:
    """Hexadecimal digits; 'words' in quotes stand for themselves."""
    parts = enumerate(text.split("'"))
    return b"".join(part.encode() if index % 2 else bytes.fromhex(part) for index, part in parts)


def c_packet(data: bytes, *, version: int, most: int = mqtt.MAX_PACKET_BYTES) -> tuple[int, Any, Any]:
    """Result of the C decoder on an exact-size block, the packet, and the block to keep; slices lie inside it."""
    source, packet = heap_bytes(data), ffi.new("hmq_mqtt_packet *")
    result = lib.hmq_mqtt_decode(source, len(data), version, most, packet)
    if result > 0:
        for part in (packet.topic, packet.properties, packet.payload):
            assert part.len == 0 or (part.data >= source and part.data + part.len <= source + result)
    return result, packet, source


def refused(text: str, fault: str, statement: str, *, version: int) -> ProtocolError:
    """The packet before is kept; the fault has its code, and its text names the statement that is violated."""
    data = wire(text)
    ping = wire("c0 00")
    packets, consumed, error = mqtt.decode_many(ping + data, version=version)
    assert error is not None
    assert (packets, consumed) == ([Pingreq()], len(ping))
    assert error.code == getattr(lib, f"HMQ_MQTT_{fault}")
    assert statement in str(error)
    assert lib.hmq_mqtt_decode(heap_bytes(data), len(data), version, 1000, ffi.new("hmq_mqtt_packet *")) == error.code
    return error


def assert_texts_differ(faults: Iterable[str]) -> None:
    """Each fault has a text of its own, which says what is accepted."""
    texts = [ffi.string(lib.hmq_mqtt_error_text(getattr(lib, f"HMQ_MQTT_{fault}"))) for fault in faults]
    assert len(set(texts)) == len(texts)
    assert [text for text in texts if b"; expected " not in text] == []


def byte_by_byte(data: bytes, decode: Callable[[bytes], mqtt.Decoded]) -> list[Packet]:
    """The packets of bytes that come one at a time; none is left over."""
    got: list[Packet] = []
    waiting = b""
    for byte in data:
        waiting += bytes([byte])
        found, consumed, error = decode(waiting)
        assert error is None
        got += found
        waiting = waiting[consumed:]
    assert waiting == b""
    return got
