"""Offsets and how ranges are cut: arithmetic."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq_pipeline.errors import DataLossError, OptionError, PipelineError
from holdmq_pipeline.offsets import Range, ShardInfo, admitted, from_json, lost, plan, resolve, to_json
from holdmq_pipeline.options import OPTIONS, READ, WRITE, Options

SHARDS = [ShardInfo(0, 11, 31), ShardInfo(1, 1, 1)]

counts = st.dictionaries(st.integers(0, 5), st.integers(0, 1000), max_size=6)


def test_words_and_numbers_name_offsets() -> None:
    assert resolve("startingOffsets", "earliest", SHARDS) == {0: 11, 1: 1}
    assert resolve("startingOffsets", "latest", SHARDS) == {0: 31, 1: 1}
    assert resolve("startingOffsets", {0: -1, 1: -2}, SHARDS) == {0: 31, 1: 1}
    assert resolve("endingOffsets", {0: 20, 1: 5}, SHARDS) == {0: 20, 1: 5}
    with pytest.raises(OptionError, match=r"endingOffsets has the shards \[0\]; expected each of \[0, 1\]"):
        resolve("endingOffsets", {0: 20}, SHARDS)


def test_what_retention_removed_is_known() -> None:
    assert lost({0: 5, 1: 1}, SHARDS) == [Range(0, 5, 11)]
    assert lost({0: 11, 1: 1}, SHARDS) == []


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1763912345678", 1763912345678),
        ("1763912345.678", 1763912345678),
        ("2025-11-23T15:39:05.678Z", 1763912345678),
        ("2025-11-23 15:39:05.678", 1763912345678),
        ("earliest", 0),
    ],
)
def test_a_time_has_the_forms_that_the_client_takes(text: str, at_ms: int) -> None:
    assert Options({"startingTimestamp": text}, READ).time_ms("startingTimestamp") == at_ms


def test_a_time_may_count_from_now() -> None:
    before = time.time_ns() // 1_000_000
    found = Options({"endingTimestamp": "24h"}, READ).time_ms("endingTimestamp")
    assert found is not None
    assert before <= found + 86_400_000 <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("text", ["1763912345", "yesterday", "-5", "24 h", "1763912345678.0"])
def test_a_time_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"option startingTimestamp is .*; expected"):
        Options({"startingTimestamp": text}, READ).time_ms("startingTimestamp")


def test_a_time_to_live_is_seconds_or_a_number_with_a_unit() -> None:
    for text in ("86400", "86400.0", "24h", "1d", "1440m"):
        assert Options({"ttl": text}, WRITE).seconds("ttl", 1, 2**31 - 1) == 86400
    assert Options({}, WRITE).seconds("ttl", 1, 2**31 - 1) is None
    for text in ("0", "-1", "soon", "2147483648", "24 h", "nan"):
        with pytest.raises(OptionError, match=r"option ttl is .*; expected 1 to 2147483647 seconds"):
            Options({"ttl": text}, WRITE).seconds("ttl", 1, 2**31 - 1)


def test_a_reader_ahead_of_its_shard_gets_an_error() -> None:
    with pytest.raises(DataLossError, match="shard 1: to be read from number 2 on, but its last is 0"):
        lost({0: 31, 1: 2}, SHARDS)


def test_an_offset_survives_its_checkpoint() -> None:
    assert from_json("s", to_json("s", {3: 7, 0: 1})) == {0: 1, 3: 7}
    with pytest.raises(PipelineError, match="of store 's', the query reads 't'"):
        from_json("t", to_json("s", {0: 1}))
    with pytest.raises(PipelineError, match="expected version 1"):
        from_json("s", {"v": 2})


@given(counts, st.integers(1, 3000))
def test_a_batch_has_what_it_may_have_and_starves_nobody(left: dict[int, int], most: int) -> None:
    begin = dict.fromkeys(left, 100)
    latest = {shard: 100 + count for shard, count in left.items()}
    ends = admitted(begin, latest, most)
    taken = {shard: ends[shard] - 100 for shard in left}
    assert all(0 <= taken[shard] <= left[shard] for shard in left)
    assert sum(taken.values()) == min(most, sum(left.values())) or sum(taken.values()) <= most
    if most >= sum(1 for count in left.values() if count):
        assert all(taken[shard] > 0 for shard in left if left[shard])
    assert admitted(begin, latest, None) == latest


@given(counts, st.integers(1, 300), st.one_of(st.none(), st.integers(1, 9)))
def test_tasks_cover_the_ranges_exactly(sizes: dict[int, int], most: int, least: int | None) -> None:
    ranges = [Range(shard, 50, 50 + size) for shard, size in sizes.items()]
    tasks = plan(ranges, most, least)
    assert all(0 < len(task) <= most for task in tasks)
    for part in ranges:
        own = [task for task in tasks if task.shard == part.shard]
        assert [task.begin for task in own] == [part.begin, *(task.end for task in own[:-1])][: len(own)]
        assert sum(map(len, own)) == len(part)
    if least is not None:
        assert len(tasks) >= min(least, sum(sizes.values()))


def test_an_option_belongs_where_it_is_of_use() -> None:
    assert Options({"TOPICFILTER": "a/+"}).topic_filters() == ("a/+",)
    assert Options({"topicFilter": '["a/+", "b", "a/+"]'}).topic_filters() == ("a/+", "b")
    with pytest.raises(OptionError, match="chunkRows does not apply to read; expected only for write"):
        Options({"chunkRows": "5"})
    with pytest.raises(OptionError, match="option 'shards' is unknown"):
        Options({"shards": "5"})
    with pytest.raises(OptionError, match="a shared subscription"):
        Options({"topicFilter": "$share/g/a"}).topic_filters()
    with pytest.raises(OptionError, match=r"option topicFilter is 'a/#/b'"):
        Options({"topicFilter": '["a", "a/#/b"]'}).topic_filters()
    with pytest.raises(OptionError, match="33 filters; expected at most 32"):
        Options({"topicFilter": json.dumps([str(n) for n in range(33)])}).topic_filters()


def test_every_option_has_a_sentence_and_a_place() -> None:
    assert all(option.meaning and option.used for option in OPTIONS)
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


def test_the_documentation_has_every_option_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    section = text.partition("## Options")[2].partition("\n## ")[0]
    shown = [
        f"| `{option.name}` | {', '.join(option.used)} | {f'`{option.default}`' if option.default else ''} | "
        f"{option.meaning} |"
        for option in OPTIONS
    ]
    assert [line for line in section.splitlines() if line.startswith("| `")] == shown
