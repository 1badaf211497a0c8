"""MQTT packet identifiers (1..65535, in a circle) and the serials that keep their order (src/topic/packet_id.h)."""

from collections.abc import Container

from holdmq.core._binding import CData, ffi, lib

__all__ = ["MAX_PACKET_ID", "allocate_packet_id", "next_packet_id", "serial_of", "serial_round"]

MAX_PACKET_ID: int = lib.HMQ_PACKET_ID_MAX


def next_packet_id(last: int) -> int:
    """The identifier after `last` (0..65535): 1 after 0 (none assigned yet) and after 65535."""
    return int(lib.hmq_packet_id_next(last))


def allocate_packet_id(last: int, in_use: Container[int]) -> int:
    """The next identifier after `last` that is not in use; 0 if all 65535 are in use."""
    query = _Query(in_use)
    handle = ffi.new_handle(query)
    packet_id = int(lib.hmq_packet_id_allocate(last, lib.hmq_python_packet_id_in_use, handle, ffi.NULL))
    if query.error is not None:
        raise query.error
    return packet_id


def serial_of(round_number: int, packet_id: int) -> int:
    """The serial of this identifier in this round (from 0): `round_number * 65535 + packet_id`."""
    return int(lib.hmq_serial_of(round_number, packet_id))


def serial_round(serial: int, packet_id: int) -> int:
    """The smallest round in which the identifier has a serial of at least `serial`."""
    return int(lib.hmq_serial_round(serial, packet_id))


class _Query:
    """The container, and an exception that it raised, which cannot cross C."""

    __slots__ = ("error", "in_use")

    def __init__(self, in_use: Container[int]) -> None:
        self.in_use = in_use
        self.error: Exception | None = None


@ffi.def_extern()
def hmq_python_packet_id_in_use(context: CData, packet_id: int) -> bool:
    """Called by hmq_packet_id_allocate for each candidate. An error ends the search."""
    query: _Query = ffi.from_handle(context)
    try:
        return packet_id in query.in_use
    except Exception as error:  # noqa: BLE001 - raised again by allocate_packet_id
        query.error = error
        return False
