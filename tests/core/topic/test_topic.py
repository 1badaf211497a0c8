"""Topic names and filters: which are valid, which match. MQTT 3.1.1 sections 1.5.3 and 4.7, MQTT 5.0 section 4.8.2."""

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdmq import core
from holdmq.core._binding import ffi, lib
from tests.core import models
from tests.core.support import copy, heap, heap_bytes

raw_bytes = st.lists(
    st.one_of(
        st.sampled_from([b"/", b"+", b"#", b"a", b"\0", b"$", b"$share/", "é".encode(), "€".encode(), "😀".encode()]),
        st.sampled_from([b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xff", b"\x80"]),
        st.binary(min_size=1, max_size=3),
    ),
    max_size=12,
).map(b"".join)


def check_name(data: bytes) -> str:
    return error_name(lib.hmq_topic_check_name(heap(data), len(data)))


def check_filter(data: bytes) -> str:
    return error_name(lib.hmq_topic_check_filter(heap(data), len(data)))


def error_name(code: int) -> str:
    names = {getattr(lib, name): name for name in dir(lib) if name.startswith("HMQ_TOPIC_") and "MAX" not in name}
    return names[code].removeprefix("HMQ_TOPIC_")


def matches(topic_filter: str, name: str) -> bool:
    wanted, given_name = topic_filter.encode(), name.encode()
    return bool(lib.hmq_topic_matches(heap(wanted), len(wanted), heap(given_name), len(given_name)))


# ---- valid or not ----


@given(raw_bytes)
@example(b"")
@example(b"a" * 65535)
@example(b"a" * 65536)
@example(b"/" * 127)
@example(b"/" * 128)
@example(b"$share/g/" + b"/" * 127)
@example(b"$share/g/" + b"/" * 128)
def test_a_text_is_refused_for_the_reason_that_the_standard_gives(data: bytes) -> None:
    assert check_name(data) == models.name_error(data)
    assert check_filter(data) == models.filter_error(data)


@given(st.binary(max_size=20))
@example("grüße, Κόσμε, 世界".encode())
@example(b"aaaaaaaa\0")
@example(b"aaaaaaa\x00aaaaaaaa")
@example(b"\x80aaaaaaa")
@example(b"aaaaaaaaaaaaaaa\xc3")
def test_utf8_is_what_python_takes_for_it(data: bytes) -> None:
    try:
        expected = lib.HMQ_UTF8_NUL if "\0" in data.decode("utf-8") else lib.HMQ_UTF8_OK
    except UnicodeDecodeError:
        expected = lib.HMQ_UTF8_ILL_FORMED
    assert lib.hmq_utf8_check(heap_bytes(data), len(data)) == expected


def test_every_character_is_utf8_and_no_surrogate_is() -> None:
    for first in range(0, 0x110000, 0x400):  # blocks of 1024 characters; the surrogates are whole blocks
        block = "".join(map(chr, range(max(first, 1), first + 0x400))).encode("utf-8", "surrogatepass")
        surrogates = 0xD800 <= first <= 0xDFFF
        expected = lib.HMQ_UTF8_ILL_FORMED if surrogates else lib.HMQ_UTF8_OK
        assert lib.hmq_utf8_check(heap_bytes(block), len(block)) == expected, hex(first)


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        # MQTT 3.1.1, section 4.7.1, the examples of the standard
        ("sport/tennis/player1/#", "OK"),
        ("#", "OK"),
        ("sport/tennis/#", "OK"),
        ("sport/tennis#", "BAD_HASH"),
        ("sport/tennis/#/ranking", "BAD_HASH"),
        ("+", "OK"),
        ("+/tennis/#", "OK"),
        ("sport+", "BAD_PLUS"),
        ("sport/+/player1", "OK"),
        # MQTT 5.0, section 4.8.2
        ("$share/consumer1/sport/tennis/+", "OK"),
        ("$share/consumer1//finance", "OK"),
        ("$share/consumer1/", "BAD_SHARE"),
        ("$share/consumer1", "BAD_SHARE"),
        ("$share//a", "BAD_SHARE"),
        ("$share/a+/b", "BAD_SHARE"),
        ("$share/a/$share/b/c", "BAD_SHARE"),
        ("$share", "OK"),
        ("$shared/a/b", "OK"),
    ],
)
def test_the_filters_of_the_standard_are_checked_as_it_says(topic_filter: str, expected: str) -> None:
    assert check_filter(topic_filter.encode()) == expected


def test_every_fault_has_a_text_of_its_own() -> None:
    texts = {ffi.string(lib.hmq_topic_error_text(code)) for code in range(10)}
    assert len(texts) == 10
    assert ffi.string(lib.hmq_topic_error_text(99)) == b"unknown topic error"


# ---- matching ----


@given(models.filters, models.names)
def test_a_filter_matches_what_the_model_says(topic_filter: str, name: str) -> None:
    assert matches(topic_filter, name) == models.topic_matches(topic_filter, name)


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        # MQTT 3.1.1, sections 4.7.1.2, 4.7.1.3, 4.7.2
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/broker", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/broker", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+", "a/$b", True),
        ("accounts", "ACCOUNTS", False),
    ],
)
def test_the_examples_of_the_standard_match_as_it_says(topic_filter: str, name: str, expected: bool) -> None:
    assert matches(topic_filter, name) is expected
    assert core.matches(topic_filter, name) is expected


def test_nothing_matches_an_empty_text() -> None:
    assert not lib.hmq_topic_matches(heap(b""), 0, heap(b"a"), 1)
    assert not lib.hmq_topic_matches(heap(b"#"), 1, heap(b""), 0)


# ---- shared subscriptions ----


@given(st.sampled_from(["g", "group 1", "é"]), models.filters)
def test_a_shared_subscription_is_split_into_group_and_filter(group: str, inner: str) -> None:
    data = f"$share/{group}/{inner}".encode()
    source = heap(data)
    parts = ffi.new("hmq_slice[2]")
    assert lib.hmq_topic_split_share(source, len(data), parts + 0, parts + 1)
    assert [copy(part.data, part.len).decode() for part in parts] == [group, inner]


@given(models.filters)
def test_an_ordinary_filter_is_not_split(topic_filter: str) -> None:
    data = topic_filter.encode()
    parts = ffi.new("hmq_slice[2]")
    assert not lib.hmq_topic_split_share(heap(data), len(data), parts + 0, parts + 1)
    assert core.split_share(topic_filter) is None


# ---- from Python ----


def test_python_gets_the_reason_as_an_exception() -> None:
    with pytest.raises(core.InvalidTopicError, match=r"contains a wildcard; expected no \+ and no #") as caught:
        core.check_topic_name("a/#")
    assert caught.value.code == lib.HMQ_TOPIC_WILDCARD
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes
    with pytest.raises(core.InvalidTopicError, match="invalid UTF-8; expected valid UTF-8"):
        core.check_topic_filter("\ud800")


def test_python_takes_str_and_bytes_alike() -> None:
    core.check_topic_name("é/b")
    core.check_topic_name("é/b".encode())
    assert core.matches(b"+/b", "é/b")
    assert core.split_share(b"$share/g/a/+") == (b"g", b"a/+")
    assert not core.matches("$share/g/a", "a")
    with pytest.raises(core.InvalidTopicError):
        core.matches("a", "a/+")
    with pytest.raises(core.InvalidTopicError):
        core.matches("a+", "a")
    assert (core.MAX_TOPIC_BYTES, core.MAX_TOPIC_LEVELS) == (models.MAX_BYTES, models.MAX_LEVELS)


# ---- covering ----

_level = st.sampled_from(["", "a", "b", "+", "$s"])
_covering_filters = st.builds(
    lambda levels, rest: "/".join([*levels, "#"] if rest or not levels else levels),
    st.lists(_level, max_size=3),
    st.booleans(),
).filter(bool)
_covered_names = st.lists(st.sampled_from(["", "a", "b", "c", "$s"]), min_size=1, max_size=4).map("/".join).filter(bool)


def covers(outer: str, inner: str) -> bool:
    """hmq_topic_covers."""
    one, other = outer.encode(), inner.encode()
    return bool(lib.hmq_topic_covers(heap(one), len(one), heap(other), len(other)))


@given(_covering_filters, _covering_filters, _covered_names)
def test_what_a_covered_filter_matches_its_cover_matches(outer: str, inner: str, name: str) -> None:
    if covers(outer, inner) and matches(inner, name):
        assert matches(outer, name)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("#", "#"),
        ("#", "a/+/b"),
        ("#", "+/#"),
        ("+/#", "#"),
        ("a/#", "a"),
        ("a/#", "a/#"),
        ("a/#", "a/b/#"),
        ("a/+/#", "a/+"),
        ("+/+", "a/+"),
        ("$x/#", "$x/y"),
        ("a//+", "a//"),
    ],
)
def test_a_filter_covers_what_lies_within_it(outer: str, inner: str) -> None:
    assert covers(outer, inner)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("a/#", "#"),
        ("a/#", "+/b"),
        ("a/+", "a/#"),
        ("a/+/#", "a/#"),
        ("a/b", "a/+"),
        ("+", "+/+"),
        ("a/+", "a"),
        ("#", "$x/#"),
        ("+/y", "$x/y"),
        ("", "a"),
        ("a", ""),
    ],
)
def test_a_filter_does_not_cover_what_reaches_beyond_it(outer: str, inner: str) -> None:
    assert not covers(outer, inner)
