"""Messages as TBMQ keeps them: JSON of which three members are found and replaced and the rest stays to the byte."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.core._binding import ffi, lib
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
def test_other_values_are_not_such_a_message(data: bytes) -> None:
    assert not is_message(data)
    assert not lib.hmq_tbmq_is_released(heap(data), len(data))
    assert lib.hmq_tbmq_with_packet_id(heap(data), len(data), 1, heap(bytes(64)), 64) == 0
    assert lib.hmq_tbmq_released(heap(data), len(data), heap(bytes(64)), 64) == 0


@given(messages)
def test_a_truncated_message_is_invalid(message: Any) -> None:
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
def test_blanks_may_be_anywhere_between(blank: bytes) -> None:
    data = blank.join([b"", b"{", b'"packetType"', b":", b'"PUBREL"', b",", b'"packetId"', b":", b"7", b"}", b""])
    assert lib.hmq_tbmq_is_released(heap(data), len(data))
    out = heap(bytes(len(data) + 20))
    size = lib.hmq_tbmq_with_packet_id(heap(data), len(data), 8, out, len(data) + 20)
    assert copy(out, size) == data.replace(b"7", b"8")


# ---- as a record -----------------------------------------------------------------------------------------------------

FULL = {
    "clientId": "publisher",
    "topicName": 'europe/ua/kyiv/\u00fc\U0001f600/"0"',
    "time": 1_760_000_000_000,
    "qos": 1,
    "packetId": 7,
    "packetType": "PUBLISH",
    "payload": base64.b64encode(bytes(range(256))).decode(),
    "retained": True,
    "msgExpiryInterval": 60,
    "payloadFormatIndicator": 1,
    "contentType": "text/plain",
    "responseTopic": "a/b",
    "correlationData": base64.b64encode(b"\0\xff").decode(),
    "subscriptionIds": [1, 268435455, 200],
    "userProperties": {"props": [{"k": "a", "v": "b/c"}, {"v": "", "k": "\t"}]},
}


def short(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def read(data: bytes) -> dict[str, Any] | None:
    """The record, its texts as bytes; None if it is none."""
    source, out, record = heap(data), heap(bytes(len(data))), ffi.new("hmq_record *")
    if not lib.hmq_tbmq_read(source, len(data), out, len(data), record):
        return None
    texts = {name: getattr(record, name) for name in ("topic", "properties", "payload")}
    numbers = {name: getattr(record, name) for name in ("type", "qos", "retain", "time_ms", "expires_ms")}
    return numbers | {name: bytes(ffi.buffer(text.data, text.len)) if text.len else b"" for name, text in texts.items()}


@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"ensure_ascii": False}])
@pytest.mark.parametrize("slash", ["/", "\\/"], ids=["plain", "as cjson writes it"])
def test_a_message_is_read_with_all_its_members(style: dict[str, Any], slash: str) -> None:
    data = json.dumps(FULL, **style).replace("/", slash).encode()
    properties = b"\x0b\x01\x0b\xff\xff\xff\x7f\x0b\xc8\x01" + b"\x01\x01" + b"\x03" + short(b"text/plain")
    properties += b"\x08" + short(b"a/b") + b"\x09" + short(b"\0\xff")
    properties += b"\x26" + short(b"a") + short(b"b/c") + b"\x26" + short(b"\t") + short(b"")
    assert read(data) == {
        "type": lib.HMQ_RECORD_PUBLISH,
        "qos": 1,
        "retain": True,
        "time_ms": 1_760_000_000_000,
        "expires_ms": 1_760_000_060_000,
        "topic": 'europe/ua/kyiv/\u00fc\U0001f600/"0"'.encode(),
        "properties": properties,
        "payload": bytes(range(256)),
    }


def test_of_a_message_the_topic_alone_is_needed_and_null_is_missing() -> None:
    bare = read(b'{"packetType":"PUBLISH","topic":"t"}')
    assert bare is not None
    assert (bare["topic"], bare["qos"], bare["expires_ms"], bare["payload"]) == (b"t", 0, 0, b"")
    nothing = dict.fromkeys(FULL) | {"topicName": "t", "packetType": "PUBLISH"}
    assert read(json.dumps(nothing).encode()) == bare
    emptied = {"packetType": "PUBLISH", "topicName": "t", "userProperties": {"props": {}}, "subscriptionIds": {}}
    assert read(json.dumps(emptied).encode()) == bare  # lists that were empty, when Lua had written them


def test_a_released_message_is_read_as_a_pubrel() -> None:
    released = read(json.dumps(FULL | {"packetType": "PUBREL", "payload": ""}).encode())
    assert released is not None
    assert (released["type"], released["qos"], released["topic"]) == (lib.HMQ_RECORD_PUBREL, 2, b"")


@pytest.mark.parametrize(
    "wrong",
    [
        {"topicName": "a/#"},
        {"topicName": ""},
        {"topicName": 5},
        {"topicName": "\ud800"},
        {"topicName": "\0"},
        {"packetType": "OTHER"},
        {"qos": 3},
        {"qos": -1},
        {"time": 1.5},
        {"time": 10**16},
        {"msgExpiryInterval": 2**32},
        {"payload": "a"},
        {"payload": "a=b="},
        {"payload": "?"},
        {"payloadFormatIndicator": 2},
        {"contentType": "\0"},
        {"responseTopic": "a/+"},
        {"responseTopic": ""},
        {"correlationData": "*"},
        {"subscriptionIds": [0]},
        {"subscriptionIds": [268435456]},
        {"subscriptionIds": [1, "2"]},
        {"userProperties": []},
        {"userProperties": {"other": []}},
        {"userProperties": {"props": [{"k": "a"}]}},
        {"userProperties": {"props": [{"k": "a", "v": 1}]}},
        {"userProperties": {"props": [{"k": "a", "v": "x" * 65536}]}},
    ],
    ids=lambda wrong: repr(wrong)[:80],
)
def test_a_member_out_of_its_range_makes_it_invalid(wrong: dict[str, Any]) -> None:
    assert read(json.dumps(FULL | wrong).encode()) is None


@given(st.data())
def test_a_message_that_is_cut_or_changed_is_read_within_its_bounds(data: st.DataObject) -> None:
    source = bytearray(json.dumps(FULL).encode())
    for _ in range(data.draw(st.integers(0, 4))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(source[: data.draw(st.integers(0, len(source)))]))


@given(st.text(max_size=20), st.binary(max_size=40), st.booleans())
def test_texts_and_payloads_come_back_as_they_were(name: str, payload: bytes, ascii_only: bool) -> None:
    message = {"packetType": "PUBLISH", "topicName": "t/" + name, "payload": base64.b64encode(payload).decode()}
    data = json.dumps(message, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    allowed = not any(c in name for c in "+#\0")
    got = read(data)
    if not allowed:
        assert got is None
    else:
        assert got is not None
        assert (got["topic"].decode(), got["payload"]) == ("t/" + name, payload)
