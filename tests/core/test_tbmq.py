"""Messages as TBMQ keeps them: JSON of which three members are found and replaced and the rest stays to the byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core._binding import lib
from tests.core.support import copy, heap, written

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"', "\\", "{", "],"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
others = st.dictionaries(st.text(max_size=6).filter(lambda name: not name.startswith("pa")), values, max_size=4)
messages = st.builds(
    lambda kind, other, optional: {"packetType": kind, **other, **optional},
    st.sampled_from(["PUBLISH", "PUBREL"]),
    others,
    st.fixed_dictionaries({}, optional={"packetId": st.integers(0, 65535), "payload": st.text(max_size=9)}),
).flatmap(lambda message: st.permutations(list(message.items())).map(dict))
styles = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def is_message(data: bytes) -> bool:
    return bool(lib.hmq_tbmq_is(heap(data), len(data)))


@given(messages, styles, st.integers(1, 65535))
def test_the_packet_identifier_is_replaced_and_nothing_else(message: Any, style: Any, packet_id: int) -> None:
    data = json.dumps(message, **style).encode("utf-8", "surrogatepass")
    source = heap(data)
    out = heap(bytes(len(data) + 20))
    size = lib.hmq_tbmq_with_packet_id(source, len(data), packet_id, out, len(data) + 20)
    changed = copy(out, size)
    assert json.loads(changed.decode("utf-8", "surrogatepass")) == {**message, "packetId": packet_id}
    again = written(size, lambda to, room: lib.hmq_tbmq_with_packet_id(source, len(data), packet_id, to, room))
    assert again == changed


@given(messages, styles)
def test_a_released_message_keeps_everything_but_its_payload(message: Any, style: Any) -> None:
    data = json.dumps(message, **style).encode("utf-8", "surrogatepass")
    assert lib.hmq_tbmq_is_released(heap(data), len(data)) == (message["packetType"] == "PUBREL")
    out = heap(bytes(len(data) + 8))
    released = copy(out, lib.hmq_tbmq_released(heap(data), len(data), out, len(data) + 8))
    payload = {"payload": ""} if "payload" in message else {}
    assert json.loads(released.decode("utf-8", "surrogatepass")) == {**message, "packetType": "PUBREL", **payload}
    assert lib.hmq_tbmq_is_released(heap(released), len(released))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{}", b"[]", b'"packetType"', b'{"a":1}', b'{"packetType":1} x', b'{"packetType"}', b"\xfa\x11"],
)
def test_other_values_are_no_such_message(data: bytes) -> None:
    assert not is_message(data)
    assert not lib.hmq_tbmq_is_released(heap(data), len(data))
    assert lib.hmq_tbmq_with_packet_id(heap(data), len(data), 1, heap(bytes(64)), 64) == 0
    assert lib.hmq_tbmq_released(heap(data), len(data), heap(bytes(64)), 64) == 0


@given(messages)
def test_a_truncated_message_is_none(message: Any) -> None:
    data = json.dumps(message).encode("utf-8", "surrogatepass")
    assert is_message(data)
    for size in range(len(data)):
        assert not is_message(data[:size])


@given(st.lists(st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b'"packetType"', b"1", b" "])))
def test_rubbish_is_never_read_beyond_its_end(parts: list[bytes]) -> None:
    data = b"".join(parts)
    out = heap(bytes(len(data) + 20))
    size = lib.hmq_tbmq_with_packet_id(heap(data), len(data), 65535, out, len(data) + 20)
    assert (size > 0) == is_message(data)


@pytest.mark.parametrize("blank", [b" ", b"\t", b"\n", b"\r"])
def test_blanks_may_stand_anywhere_between(blank: bytes) -> None:
    data = blank.join([b"", b"{", b'"packetType"', b":", b'"PUBREL"', b",", b'"packetId"', b":", b"7", b"}", b""])
    assert lib.hmq_tbmq_is_released(heap(data), len(data))
    out = heap(bytes(len(data) + 20))
    size = lib.hmq_tbmq_with_packet_id(heap(data), len(data), 8, out, len(data) + 20)
    assert copy(out, size) == data.replace(b"7", b"8")
