"""Names of the keys of channels: round trips, one slot with the channel, and no two channels with one name."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdmq import core
from holdmq.core import ChannelKey
from holdmq.core._binding import lib
from tests.core.support import copy, heap

channels = st.one_of(
    st.binary(max_size=20),
    st.lists(st.sampled_from([b"{", b"}", b"%", b"7B", b"a", b"::", b"holdmq:held:"])).map(b"".join),
)
kinds = st.sampled_from(list(ChannelKey))


@given(channels, kinds)
@example(b"", ChannelKey.HELD)
@example(b"{}", ChannelKey.LAST)
@example(b"}{", ChannelKey.HEARD)
@example(b"{a}", ChannelKey.ASIDE)
@example(b"holdmq:held:{a}", ChannelKey.HELD)
def test_every_channel_comes_back_from_its_key(channel: bytes, kind: ChannelKey) -> None:
    key = core.channel_key(channel, kind)
    assert core.channel_of_key(key) == (channel, kind)
    room = 3 * len(channel) + 40
    out = heap(bytes(room))
    for capacity in range(room):  # never written behind
        lib.hmq_channel_key_encode(heap(channel), len(channel), kind.value, heap(bytes(capacity)), capacity)
    assert copy(out, lib.hmq_channel_key_encode(heap(channel), len(channel), kind.value, out, room)) == key


@given(channels, kinds)
def test_a_key_is_in_its_channels_slot(channel: bytes, kind: ChannelKey) -> None:
    assert core.slot_of(core.channel_key(channel, kind)) == core.slot_of(channel)


@given(st.lists(st.tuples(channels, kinds), min_size=2, unique=True))
def test_no_two_channels_share_a_key(pairs: list[tuple[bytes, ChannelKey]]) -> None:
    assert len({core.channel_key(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("channel", "key"),
    [
        (b"ch", b"holdmq:held:{ch}"),
        (b"news{eu}", b"holdmq:held::news{eu}"),
        (b"a}b", b"holdmq:held:%{20658}a%7Db"),
        (b"", b"holdmq:held:%{3560}"),
    ],
)
def test_the_three_forms_are_those_of_the_documentation(channel: bytes, key: bytes) -> None:
    assert core.channel_key(channel) == key


@given(st.one_of(st.binary(max_size=30), st.binary(max_size=20).map(lambda tail: b"holdmq:held:" + tail)))
@example(b"holdmq:held:")
@example(b"holdmq:held:{")
@example(b"holdmq:held:{a}b}")
@example(b"holdmq:held:::a")
@example(b"holdmq:held:%{1}a%7D")
@example(b"holdmq:other:{a}")
def test_other_names_are_not_those_of_a_channel(name: bytes) -> None:
    found = core.channel_of_key(name)
    assert found is None or core.channel_key(*found) == name


@pytest.mark.parametrize("slot", [0, 1, 12182, 16383])
def test_the_number_of_a_slot_is_the_smallest_whose_digits_are_in_it(slot: int) -> None:
    number = lib.hmq_slot_tag(slot)
    assert core.slot_of(b"%d" % number) == slot
    assert all(core.slot_of(b"%d" % smaller) != slot for smaller in range(number))
