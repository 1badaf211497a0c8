"""Patterns learned level by level by Spark, beside the learner in C on the same topics."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from holdmq.cli import main
from holdmq.core import PatternLearner, PatternSet
from holdmq_pipeline.jobs.learn import LearnOptions, check_filters, learn, learn_store, read_filters
from holdmq_pipeline.options import Options
from holdmq_pipeline.pattern_frames import CACHED_PLANS
from holdmq_pipeline.pattern_install import install
from holdmq_pipeline.pattern_levels import Candidate, bits_for, learn_levels
from holdmq_pipeline.wire import Link
from tests.support import Server, embedded_kinds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

server_kinds = embedded_kinds

MAX_CHILDREN = 10_000  # of the learner in C: it then merges nothing before it is asked


def odd_topics() -> dict[str, int]:
    """Names of all shapes: levels that vary, hot ones, empty ones, deep ones, those that no wildcard takes."""
    random.seed(5)
    topics = {f"devices/{i % 300}/{random.choice(['temperature', 'a/b'])}": random.randint(1, 5) for i in range(700)}
    topics |= {f"v1/devices/x{i}/attributes": 3 for i in range(50)}
    topics |= {f"site/{i}/room/{i * 7 % 11}/t": i + 1 for i in range(30)}
    topics |= {"v1/devices/me/attributes": 5000, "deep/1/2/3/4/5": 5000}
    topics |= {"$SYS/a": 5, "$SYS/b/c": 1, "/x": 2, "a//b": 3, "a/": 1, "a": 4, "größe/ü": 9}
    return topics


def frame_of(spark: "SparkSession", topics: dict[str, int], column: str = "count") -> "DataFrame":
    return spark.createDataFrame(list(topics.items()), f"topic string, {column} long")


def learner_of(topics: dict[str, int], **options: int) -> PatternLearner:
    learner = PatternLearner(**options)
    for topic, messages in topics.items():
        learner.observe(topic, messages)
    return learner


@pytest.mark.parametrize("how", ["in the driver", "in Spark", "in Spark, estimated"])
def test_every_candidate_is_the_set_of_the_learner_in_c(spark: "SparkSession", how: str) -> None:
    topics = odd_topics()
    frame = frame_of(spark, topics, "messages")
    before = spark.conf.get(CACHED_PLANS)
    table = frame.toArrow() if how == "in the driver" else frame
    candidates = [Candidate(100), Candidate(25, 5), Candidate(6), Candidate(1), Candidate(0)]
    sets = learn_levels(table, candidates, levels=4, exact="estimated" not in how)
    for candidate, found in zip(candidates, sets, strict=True):
        learner = learner_of(topics, levels=4, max_children=MAX_CHILDREN, hot_percent=candidate.hot_percent)
        expected = learner.patterns(candidate.max_children)
        assert found is not None
        assert expected is not None
        assert found.text.decode() == expected.text.decode()
    assert spark.conf.get(CACHED_PLANS) == before


def test_a_hot_child_stays_concrete_where_the_learner_in_c_has_merged_it(spark: "SparkSession") -> None:
    topics = {f"v1/{i}/attributes": 3 for i in range(400)} | {"v1/me/attributes": 2000, "v1/\x7f/state": 9}
    filters = {"v1/me/attributes": 5, "v1/7/attributes": 1}
    result = learn(frame_of(spark, topics), filters=filters, options=LearnOptions(levels=4))
    spread = learn(frame_of(spark, topics), filters=filters, options=LearnOptions(levels=4, local_topics=100))
    assert spread.report() == result.report()
    theirs = learner_of(topics, levels=4).propose(PatternSet("holdmq-patterns 1 levels=4\n#"), filters)
    assert b"\nv1/me/attributes\n" in result.best.patterns.text
    assert theirs.patterns is not None
    assert b"v1/me/attributes" not in theirs.patterns.text
    measure = learner_of(topics, levels=4)
    assert measure.cost(result.best.patterns, filters).cost < measure.cost(theirs.patterns, filters).cost
    assert result.figures.rows == sum(topics.values())
    assert result.figures.counts["topics"] == len(topics)


def test_the_cheapest_set_depends_on_what_readers_ask_for(spark: "SparkSession") -> None:
    topics = {f"site/{site}/{kind}": 10 for site in range(20) for kind in ("t", "p")}
    frame = frame_of(spark, topics)
    present = PatternSet("holdmq-patterns 1 levels=8\n#")
    options = LearnOptions(candidates=[Candidate(100), Candidate(6)], shards=4)
    across = learn(frame, filters={"site/+/t": 10}, present=present, options=options)
    single = learn(frame, filters={"site/3/t": 10}, present=present, options=options)
    assert across.best.patterns.text == b"holdmq-patterns 1 levels=8\n#\nsite/+7/p\nsite/+7/t\n"
    assert len(single.best.patterns) == 1 + 40
    assert across.present is not None
    assert across.present.cost.cost > across.best.cost.cost
    assert 1.0 <= across.best.skew <= 4.0
    assert "present" in across.report()
    assert sum(across.best.shares.values()) == pytest.approx(1.0)


def test_the_best_set_is_installed_as_the_next_generation_unless_another_came_meanwhile(
    spark: "SparkSession", server: Server, client: redis.Redis
) -> None:
    client.execute_command("HISTORY.STORE", "telemetry", "FILTER", "site/#", "SHARDS", 2)
    topics = {f"site/{site}/{kind}": 10 for site in range(20) for kind in ("t", "p")}
    frame = frame_of(spark, topics)
    options = LearnOptions(candidates=[Candidate(6)])
    with Link(Options({"url": server.url})) as link:
        tried = learn_store(frame, link, "telemetry", filters={"site/+/t": 1}, options=options, dry_run=True)
        assert tried.installed == 0
        done = learn_store(frame, link, "telemetry", filters={"site/+/t": 1}, options=options)
        assert done.installed == 2
        for shard in (0, 1):
            there: Any = client.execute_command("HISTORY.PATTERNS", "GET", "telemetry", "SHARD", shard)
            assert there == [2, b"holdmq-patterns 1 levels=8\n#\nsite/+7/p\nsite/+7/t\n"]
        with pytest.raises(redis.ResponseError, match="STALE"):
            install(link, "telemetry", tried.best.patterns, after=0)
        again = learn_store(frame, link, "telemetry", filters={"site/+/t": 1}, options=options)
        assert again.installed == 0


def test_the_command_learns_from_a_table_and_ends_with_its_figures(
    spark: "SparkSession", server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.execute_command("HISTORY.STORE", "telemetry", "FILTER", "site/#")
    frame_of(spark, {f"site/{site}/t": 10 for site in range(200)}).write.parquet(str(tmp_path / "topics"))
    words = [
        "--url",
        server.url,
        "pipeline",
        "learn",
        "--input",
        str(tmp_path / "topics"),
        "--store",
        "telemetry",
        "--install",
    ]
    done = CliRunner().invoke(main, [*words, "--output", str(tmp_path / "patterns")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "learn: 2,000 rows" in done.stdout
    assert "topics 200" in done.stdout
    assert "generation 2" in done.stdout
    there: Any = client.execute_command("HISTORY.PATTERNS", "GET", "telemetry")
    assert there[1] == (tmp_path / "patterns").read_bytes() == b"holdmq-patterns 1 levels=8\n#\nsite/+10/t\n"


def test_a_candidate_with_too_many_patterns_has_no_set(spark: "SparkSession") -> None:
    topics = {f"a/{i}": 1 for i in range(30)}
    assert learn_levels(frame_of(spark, topics, "messages").toArrow(), [Candidate(100)], max_patterns=20) == [None]
    sets = learn_levels(frame_of(spark, topics, "messages"), [Candidate(100), Candidate(6)], max_patterns=20)
    assert sets[0] is None
    assert sets[1] is not None
    assert len(sets[1]) == 2


@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "c", "", "$s"]), min_size=1, max_size=5)
        .map("/".join)
        .filter(lambda topic: topic != ""),
        st.integers(1, 20),
        min_size=1,
        max_size=40,
    )
)
def test_any_topics_learned_from_in_the_driver_give_the_sets_of_the_learner_in_c(topics: dict[str, int]) -> None:
    table = pa.table({"topic": list(topics), "messages": list(topics.values())})
    candidates = [Candidate(2, 40), Candidate(1, 101), Candidate(0)]
    for candidate, found in zip(candidates, learn_levels(table, candidates, levels=3), strict=True):
        learner = learner_of(topics, levels=3, max_children=MAX_CHILDREN, hot_percent=candidate.hot_percent)
        assert found == learner.patterns(candidate.max_children)


@pytest.mark.parametrize("topic", ["devices/+/t", "a#", "", "a\x00b"])
def test_a_name_that_is_not_a_topic_is_named(spark: "SparkSession", topic: str) -> None:
    with pytest.raises(ValueError, match="among the topics is not a topic name"):
        learn(frame_of(spark, {"a": 1, topic: 1}))


def test_bits_are_four_hashes_for_a_value_as_in_c() -> None:
    for different in (2, 3, 4, 15, 16, 100, 1000):
        learner = learner_of({f"a/{i}": 1 for i in range(different)}, max_children=MAX_CHILDREN, hot_percent=101)
        patterns = learner.patterns(1)
        assert patterns is not None
        assert patterns.text.decode().splitlines()[2] == f"a/+{bits_for(different)}".replace("+20", "+")


def test_a_log_of_filters_is_added_up_and_checked(tmp_path: Path) -> None:
    log = tmp_path / "filters"
    log.write_text("devices/+/t\t3\ndevices/1/t\n\ndevices/+/t\n", encoding="utf-8")
    assert read_filters(log) == {"devices/+/t": 4, "devices/1/t": 1}
    log.write_text("devices/+/t\tmany\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: 'many' after the tab"):
        read_filters(log)
    with pytest.raises(ValueError, match="is not a topic filter"):
        check_filters({"a/b#": 1})
    with pytest.raises(ValueError, match=r"\$share"):
        check_filters({"$share/g/a": 1})
