"""Names of session keys, message keys and retained keys: round trips, and no id that defeats the hash tag."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdmq import core
from holdmq.core import Suffix
from holdmq.core._binding import ffi, lib
from tests.core.support import copy, heap, written

ids = st.one_of(
    st.binary(min_size=1, max_size=20),
    st.lists(st.sampled_from([b"{", b"}", b"%", b"7B", b"a", b"%7B", b"_messages"]), min_size=1).map(b"".join),
)
prefixes = st.sampled_from([b"", b"tbmq:", b"a}b", b"%7B"])


def encode(client_id: bytes) -> bytes:
    size = len(client_id) + 2 + 2 * sum(client_id.count(c) for c in (b"{", b"}", b"%"))
    source = heap(client_id)
    return written(size, lambda out, capacity: lib.hmq_session_key_encode(source, len(client_id), out, capacity))


def decode(key: bytes, capacity: int | None = None) -> bytes | None:
    room = len(key) if capacity is None else capacity
    out = heap(bytes(room))
    size = lib.hmq_session_key_decode(heap(key), len(key), out, room)
    return None if size < 0 else copy(out, size)


def hash_tag(key: bytes) -> bytes:
    """The part of a key that decides its slot, as the cluster specification has it."""
    _, brace, rest = key.partition(b"{")
    tag, closing, _ = rest.partition(b"}")
    return tag if brace and closing and tag else key


# ---- session keys ----


@given(ids, prefixes)
@example(b"}", b"")
@example(b"{", b"")
@example(b"%", b"")
@example(b"%7B", b"")
@example(b"{}", b"")
@example(b"\0", b"")
def test_every_client_id_comes_back_from_its_key(client_id: bytes, prefix: bytes) -> None:
    key = encode(client_id)
    assert decode(prefix + key) == client_id
    assert decode(prefix + key, len(client_id)) == client_id
    assert decode(prefix + key, len(client_id) - 1) is None
    assert lib.hmq_session_key_check(heap(prefix + key), len(prefix + key))
    assert core.session_key(client_id) == key
    assert core.client_id(prefix + key) == client_id


@given(ids, st.sampled_from(list(Suffix)))
def test_all_names_of_a_session_share_its_hash_tag(client_id: bytes, suffix: Suffix) -> None:
    key = encode(client_id)
    assert hash_tag(core.session_name(key, suffix)) == key[1:-1]
    assert hash_tag(core.message_key(key, 7)) == key[1:-1]


@given(ids, ids)
def test_two_ids_never_share_a_key(one: bytes, other: bytes) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize(("client_id", "key"), [("sensor 42", b"{sensor 42}"), ("a{b}%", b"{a%7Bb%7D%25}")])
def test_ordinary_ids_read_as_themselves(client_id: str, key: bytes) -> None:
    assert core.session_key(client_id) == key


@pytest.mark.parametrize(
    "key", [b"", b"{}", b"{", b"}", b"a", b"{a", b"{abc", b"a}", b"{a}b", b"{a}{b}", b"{{a}", b"{a}}", b"x{}"]
)
def test_an_invalid_session_key_is_refused(key: bytes) -> None:
    assert not lib.hmq_session_key_check(heap(key), len(key))
    assert not core.is_session_key(key)
    assert decode(key) is None
    with pytest.raises(ValueError, match="is not a session key"):
        core.client_id(key)
    with pytest.raises(ValueError, match="is not a session key"):
        core.session_name(key, Suffix.INBOX)
    with pytest.raises(ValueError, match="is not a session key"):
        core.message_key(key, 1)


@pytest.mark.parametrize("key", [b"{%}", b"{%7}", b"{%7b}", b"{%41}", b"{a%2}", b"{100%}"])
def test_a_broken_encoding_is_a_key_but_no_id(key: bytes) -> None:
    assert core.is_session_key(key)
    assert decode(key) is None


def test_there_is_no_key_for_an_empty_id() -> None:
    assert lib.hmq_session_key_encode(heap(b""), 0, heap(bytes(8)), 8) == 0
    with pytest.raises(ValueError, match="client id is empty"):
        core.session_key("")


# ---- parts of a session ----


def test_the_suffixes_are_those_of_the_documentation() -> None:
    assert [suffix.text for suffix in Suffix] == [
        b"_messages",
        b"_last_packet_id",
        b"_subscriptions",
        b"_session",
        b"_received",
        b"_inbox",
        b"_producers",
        b"_replays",
        b"_cursors",
        b"_places",
    ]
    size = ffi.new("size_t *")
    for suffix in Suffix:
        assert ffi.string(lib.hmq_suffix_text(suffix.value, size)) == suffix.text
        assert size[0] == len(suffix.text)
    assert len(Suffix) == lib.HMQ_SUFFIX_COUNT


@given(ids, prefixes, st.sampled_from(list(Suffix)), st.sampled_from(list(Suffix)))
def test_a_part_gives_its_session_key_back(client_id: bytes, prefix: bytes, suffix: Suffix, other: Suffix) -> None:
    key = prefix + encode(client_id)
    name = core.session_name(key, suffix)
    assert lib.hmq_session_key_of(heap(name), len(name), suffix.value) == len(key)
    assert core.session_key_of(name, suffix) == key
    assert core.session_key_of(name, other) == (key if other is suffix else None)


@pytest.mark.parametrize("name", [b"", b"_inbox", b"{}_inbox", b"a_inbox", b"{a}_inbox_", b"{a}x_inbox"])
def test_other_names_have_no_session_key(name: bytes) -> None:
    assert lib.hmq_session_key_of(heap(name), len(name), Suffix.INBOX.value) == 0


@given(ids, st.integers(1, 65535))
def test_a_message_key_gives_its_packet_identifier_back(client_id: bytes, packet_id: int) -> None:
    key = encode(client_id)
    name = key + b"_messages_%d" % packet_id
    source = heap(key)
    made = written(len(name), lambda out, room: lib.hmq_message_key(source, len(key), packet_id, out, room))
    assert made == name == core.message_key(key, packet_id)
    assert lib.hmq_message_key_packet_id(source, len(key), heap(name), len(name)) == packet_id
    assert core.message_packet_id(key, name) == packet_id
    assert core.message_packet_id(key + b"x", name) is None


@pytest.mark.parametrize("digits", [b"", b"0", b"01", b"65536", b"99999", b"100000", b"-1", b"1 ", b"a", b"1a"])
def test_what_is_not_an_identifier_does_not_end_a_message_key(digits: bytes) -> None:
    assert core.message_packet_id(b"{c}", b"{c}_messages_" + digits) is None


@pytest.mark.parametrize("name", [b"", b"{c}", b"{c}_messages", b"{c}_messages1", b"{d}_messages_1", b"{c}_Messages_1"])
def test_other_keys_are_not_message_keys(name: bytes) -> None:
    assert lib.hmq_message_key_packet_id(heap(b"{c}"), 3, heap(name), len(name)) == 0


def test_a_message_key_needs_an_identifier_within_range() -> None:
    for packet_id in (0, 65536, -1):
        with pytest.raises(ValueError, match=r"expected 1\.\.65535"):
            core.message_key("{c}", packet_id)


# ---- retained messages ----


@given(ids, prefixes)
def test_a_retained_key_gives_its_topic_back(topic: bytes, prefix: bytes) -> None:
    key = encode(topic) + b"_retained"
    source = heap(topic)
    assert written(len(key), lambda out, room: lib.hmq_retained_key(source, len(topic), out, room)) == key
    assert core.retained_key(topic) == key
    assert core.retained_topic(prefix + key) == topic
    out = heap(bytes(len(topic)))
    assert lib.hmq_retained_topic(heap(key), len(key), out, len(topic)) == len(topic)
    assert copy(out, len(topic)) == topic


@pytest.mark.parametrize("key", [b"", b"_retained", b"{a}", b"{}_retained", b"a_retained", b"{a%}_retained"])
def test_other_keys_have_no_topic(key: bytes) -> None:
    assert lib.hmq_retained_topic(heap(key), len(key), heap(bytes(32)), 32) == -1
    with pytest.raises(ValueError, match="not the key of a retained message"):
        core.retained_topic(key)


def test_there_is_no_retained_key_for_an_empty_topic() -> None:
    assert lib.hmq_retained_key(heap(b""), 0, heap(bytes(32)), 32) == 0
    with pytest.raises(ValueError, match="topic is empty"):
        core.retained_key("")
