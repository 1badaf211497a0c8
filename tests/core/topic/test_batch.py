"""Columns of messages become the very commands that a client would send one by one."""

from array import array
from typing import Any

import pytest
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st

from holdmq import core
from holdmq.core.batch import InvalidRowError, MessageBatch, Packed, Texts

NOW_MS = 1_700_000_000_000
texts = st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=12)


def column(values: list[bytes | None], first: int = 0) -> Texts:
    """As Arrow lays it out, with so many rows of others before."""
    bits = 0
    offsets = array("i", range(first + 1))
    data = b"x" * first
    for at, value in enumerate(values):
        data += value or b""
        offsets.append(len(data))
        bits |= (value is not None) << (first + at)
    return Texts(data, offsets, bits.to_bytes((first + len(values)) // 8 + 1, "little"), first)


def batch(rows: int, numbers: dict[str, list[int]] | None = None, first: int = 0, **columns: Any) -> MessageBatch:
    """Of lists."""
    held = {name: array("q", values) for name, values in (numbers or {}).items()}
    made = {name: column(values, first) for name, values in columns.items()}
    return MessageBatch(rows, made, held, first_number=101, now_ms=NOW_MS)


def words(packed: Packed) -> list[list[bytes]]:
    """The commands as a server reads them."""
    reader = Reader()
    reader.feed(bytes(packed.data))
    found = []
    begin = 0
    for end in packed.ends:
        alone = Reader()
        alone.feed(bytes(packed.data[begin:end]))
        found.append(reader.gets())
        assert alone.gets() == found[-1]
        begin = end
    assert reader.gets() is False
    return found


@given(texts, st.integers(0, 9), st.integers(1, 5))
def test_sessions_get_their_rows_in_order(payloads: list[bytes | None], first: int, most: int) -> None:
    rows = len(payloads)
    clients = [(b"c", b"{d}%", b"e" * 700)[at * 7 % 3] for at in range(rows)]
    names = sorted(set(clients))
    made = batch(rows, first=first, client=clients, payload=payloads)
    groups = made.group(array("i", [names.index(one) for one in clients]), len(names), most)
    packed = made.session_adds(groups, [(b"job", 0, groups.count)], prefix=b"p:", limit=50)
    expected = []
    for name in names:
        own = [at for at in range(rows) if clients[at] == name]
        for part in (own[at : at + most] for at in range(0, len(own), most)):
            head = [b"SESSION.ADD", b"p:" + core.session_key(name), b"LIMIT", b"50", b"PRODUCER", b"job"]
            values = [payloads[at] or b"" for at in part]
            expected.append([*head, b"%d" % (101 + part[0]), b"MESSAGES", *values])
    assert words(packed) == expected
    assert sum(packed.rows) == rows


def test_a_row_with_a_topic_becomes_a_record_and_one_past_its_expiry_nothing() -> None:
    numbers = {
        "qos": [2, 1, 0, 1],
        "retain": [1, 0, 0, 0],
        "time_ms": [0, 5, 0, 0],
        "expires_ms": [0, 9, 0, 0],
        "life_s": [-1, 7, -1, 0],
    }
    made = batch(
        4,
        numbers,
        client=[b"c", b"c", b"c", b"c"],
        topic=[b"t", b"u/v", None, b"gone"],
        payload=[b"0", None, b"2", b"3"],
        publisher=[None, b"me", b"nobody", b""],
        properties=[b"\x01\x01", None, None, None],
    )
    packed = made.session_adds(made.group(array("i", [0] * 4), 1, 10), [(b"", 0, 1)])
    first = core.Record(qos=2, retain=True, time_ms=NOW_MS, topic=b"t", properties=b"\x01\x01", payload=b"0")
    second = core.Record(qos=1, time_ms=5, expires_ms=9, topic=b"u/v", publisher=b"me")
    pairs = [b"", first.encode(), b"7", second.encode(), b"", b"2"]
    assert words(packed) == [[b"SESSION.ADD", b"{c}", b"EXPIRING", *pairs]]
    assert packed.rows == [3]
    alone = made.session_adds(made.each(), [(b"job", 0, 3), (b"p", 3, 4)])
    assert (alone.rows, alone.groups) == ([1, 1, 1], [0, 1, 2])
    again = made.session_adds(made.each(), [(b"job", 0, 1), (b"p", 1, 4)], after=array("q", [0, 0, 102, 9]))
    numbered = [[b"job", b"101", b"MESSAGES"], [b"p", b"102", b"EXPIRING"], [b"p", b"103", b"AFTER", b"102"]]
    assert [command[3 : 3 + len(said)] for command, said in zip(words(again), numbered, strict=True)] == numbered


@given(texts, st.integers(0, 9), st.data())
def test_topics_get_numbered_records_and_say_what_they_follow(
    payloads: list[bytes | None], first: int, data: st.DataObject
) -> None:
    rows = len(payloads)
    lives = data.draw(st.lists(st.sampled_from([-1, 0, 3]), min_size=rows, max_size=rows))
    made = batch(rows, {"life_s": lives}, first=first, topic=[b"t"] * rows, payload=payloads)
    cut = data.draw(st.integers(0, rows))
    after: dict[bytes, int] = {b"job": 40}
    packed = made.topic_publishes([(0, cut), (cut, rows)], [b"job", b"job"], 3, after)
    expected, last = [], 40
    for part in (range(cut), range(cut, rows)):
        command = [b"TOPIC.MPUBLISH", b"PRODUCER", b"job", b"3", b"%d" % last, b"RECORD"]
        for at in (at for at in part if lives[at] != 0):
            ends = NOW_MS + 3000 if lives[at] > 0 else 0
            record = core.Record(time_ms=NOW_MS, expires_ms=ends, topic=b"t", payload=payloads[at] or b"")
            command += [b"%d" % (101 + at), record.encode()]
            last = 101 + at
        if len(command) > 6:
            expected.append(command)
    assert words(packed) == expected
    assert after == {b"job": last}


@pytest.mark.parametrize("qos", [-1, 3])
def test_a_row_that_makes_no_message_is_named(qos: int) -> None:
    rows: dict[str, Any] = {"topic": [b"t"] * 3, "payload": [b"p"] * 3}
    made = batch(3, {"qos": [0, 1, qos]}, client=[b"c"] * 3, **rows)
    groups = made.each()
    with pytest.raises(InvalidRowError) as caught:
        made.topic_publishes([(0, 3)], [b""], 0, {})
    assert caught.value.row == 2
    with pytest.raises(InvalidRowError) as caught:
        made.session_adds(groups, [(b"", 0, 3)])
    assert caught.value.row == 2
    nameless = batch(2, client=[b"c", None], payload=[b"p", b"p"])
    with pytest.raises(InvalidRowError) as caught:
        nameless.session_adds(nameless.each(), [(b"", 0, 2)])
    assert caught.value.row == 1


def test_columns_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter than it should be"):
        batch(3, payload=[b"a", b"b"])
    with pytest.raises(ValueError, match="column qos has 1 rows; expected 2"):
        batch(2, {"qos": [1]}, payload=[b"a", b"b"])
