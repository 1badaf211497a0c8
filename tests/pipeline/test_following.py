"""What each command follows: the last one of the same name, in its chunk or the one before."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdmq_pipeline.following import Following, without_after
from holdmq_pipeline.wire import command


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=8), max_size=5))
def test_a_command_follows_the_last_one_of_its_name_that_may_be_on_its_way(chunks: list[list[str]]) -> None:
    following = Following()
    number = 0
    before: dict[str, int] = {}
    for chunk in chunks:
        numbers = range(number + 1, number + 1 + len(chunk))
        expected: list[int] = []
        own: dict[str, int] = {}
        for name, number in zip(chunk, numbers, strict=True):
            expected.append(own.get(name, before.get(name, 0)))
            own[name] = number
        names = pa.array(chunk, pa.string()).dictionary_encode()
        found = following.after(names, np.arange(len(chunk)), np.array(numbers, np.int64))
        assert found.tolist() == expected
        before = own or before


def test_a_command_can_do_without() -> None:
    for before, behind in (
        (["SESSION.ADD", "{c}", "LIMIT", 5, "PRODUCER", "AFTER", 7], ["MESSAGES", "AFTER", "x"]),
        (["SESSION.ADD", "{LIMIT}", "PRODUCER", "p", 7], ["EXPIRING", 3, "AFTER"]),
        (["CHANNEL.PUBLISH", "c", "AFTER", "PRODUCER", "p", 1, 7], []),
    ):
        assert without_after(command(*before, "AFTER", 6, *behind)) == command(*before, *behind)
