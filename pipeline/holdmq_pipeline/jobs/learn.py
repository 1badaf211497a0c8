"""The job `learn`: proposes topic patterns from an archive of any size, compares them, and installs the best ones.

    topics ──► counted ──► learn_levels (pattern_levels.py) ──► a pattern set for each candidate ──► score ──► install

Spark adds up the messages of each topic. Up to `local_topics` different topics (and `LOCAL_BYTES` of names) are
collected by the driver, which learns from them in seconds. If there are more, the driver gets none of them, and Spark
goes through their levels.

The cost of a set is measured as in the server's own learner (src/history/learner.h), on the topics with the smallest
hashes and on readers' filters: logs opened for a filter, messages visited for each one returned, index bytes for each
message; the sum is in the unit "messages read". So proposals of this job and of a server can be compared.

A set is only text: every set that `HISTORY.PATTERNS PREPARE` accepts gives each topic exactly one pattern, wherever the
set comes from. A set is installed only if it costs less than the current one by a margin, because each new generation
has a price.

Not O(1): see pattern_levels.py. The memory of the driver is bounded by the two limits. Scoring takes O(filters *
sample) in the driver for each set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from holdmq.core import (
    InvalidTopicError,
    PatternCost,
    PatternLearner,
    PatternSet,
    check_topic_filter,
    check_topic_name,
    split_share,
    topic_shard,
)
from holdmq_pipeline.figures import JobFigures, measured
from holdmq_pipeline.pattern_install import install, present_patterns
from holdmq_pipeline.pattern_levels import DEFAULT_CANDIDATES, Candidate, learn_levels
from holdmq_pipeline.wire import Link

MAX_SAMPLE = 100_000
MAX_FILTERS = 100_000
LOCAL_TOPICS = 5_000_000
LOCAL_BYTES = 256 << 20
# What a topic name must not contain, for Spark: the core checks those of the sample to the letter.
INVALID_NAME = r"[+#\x00]"


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """The options of learning.

    Attributes:
        candidates: how sets are to be made.
        further: other sets to compare, by name.
        levels: to be indexed, 1..16.
        max_patterns: of a set, 1..4096.
        sample: how many topics costs are measured on, 1..100000.
        shards: of the store, to report how evenly they are filled; 0: unknown, or those of the present store.
        exact: count different levels exactly, else estimate them (where Spark does it).
        local_topics: the maximum number of different topics that the driver learns from by itself.
    """

    candidates: Sequence[Candidate] = DEFAULT_CANDIDATES
    further: Mapping[str, PatternSet] = field(default_factory=dict)
    levels: int = 8
    max_patterns: int = 256
    sample: int = 10_000
    shards: int = 0
    exact: bool = True
    local_topics: int = LOCAL_TOPICS

    def __post_init__(self) -> None:
        """Checks what `learn_levels` does not.

        Raises:
            ValueError: an option is out of its range.
        """
        if not 1 <= self.sample <= MAX_SAMPLE:
            raise ValueError(f"sample is {self.sample}; expected 1..{MAX_SAMPLE}")
        if self.shards < 0:
            raise ValueError(f"shards is {self.shards}; expected 0 or more")


@dataclass(frozen=True, slots=True)
class Scored:
    """A pattern set and its cost.

    Attributes:
        name: how it was made.
        patterns: the set.
        cost: its cost for readers and memory.
        shares: of the messages of the sample, by pattern number; patterns without any are left out.
        skew: messages of the fullest shard as a multiple of the mean, by the sample; 1.0 if the shards are unknown.
    """

    name: str
    patterns: PatternSet
    cost: PatternCost
    shares: Mapping[int, float]
    skew: float


@dataclass(frozen=True, slots=True)
class LearnResult:
    """The result of learning.

    Attributes:
        figures: rows are messages, `topics` different topics.
        scored: all sets that were compared, the cheapest first.
        present: the current set among them, if one was given.
        installed: the generation that was installed, 0 if none was.
    """

    figures: JobFigures
    scored: tuple[Scored, ...]
    present: Scored | None = None
    installed: int = 0

    @property
    def best(self) -> Scored:
        """The cheapest set."""
        return self.scored[0]

    def report(self) -> str:
        """The comparison as text: the effect of installing each set."""
        lines = ["set                        patterns  opened  read/returned  bytes/message    cost  fullest shard"]
        for one in self.scored:
            mark = "*" if one is self.best else "=" if one is self.present else " "
            lines.append(
                f"{mark} {one.name:<24} {len(one.patterns):8}  {one.cost.opened:6.2f}  {one.cost.read:13.3f}"
                f"  {one.cost.bytes:13.2f}  {one.cost.cost:6.2f}  x {one.skew:.2f}"
            )
        return "\n".join(lines)


@dataclass
class Sample:
    """Topics with the smallest hashes, each with all of its messages: uniform over topics.

    Attributes:
        topics: topic name and messages.
        levels: to be indexed.
        shards: of the store, 0 if unknown.
    """

    topics: Mapping[str, int]
    levels: int = 8
    shards: int = 0
    _learner: PatternLearner = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Feeds the learner, of which only the measure of costs is used.

        Raises:
            ValueError: there are no topics, or one is not a topic name.
        """
        if not self.topics:
            raise ValueError("there are no topics to learn from")
        size = max(len(self.topics), 1)
        self._learner = PatternLearner(levels=self.levels, sample=min(size, MAX_SAMPLE), max_nodes=1000)
        for topic, messages in self.topics.items():
            try:
                self._learner.observe(topic, messages)
            except InvalidTopicError as error:
                raise ValueError(f"{topic!r} among the topics is not a topic name: {error}") from error

    def score(self, name: str, patterns: PatternSet, filters: Mapping[str, int] | None = None) -> Scored:
        """The cost of a set; without filters each topic of the sample is a filter."""
        total = sum(self.topics.values())
        shares: dict[int, float] = {}
        for topic, messages in self.topics.items():
            number = patterns.find(topic).pattern
            shares[number] = shares.get(number, 0.0) + messages / total
        return Scored(name, patterns, self._learner.cost(patterns, filters), shares, self._skew(total))

    def _skew(self, total: int) -> float:
        if self.shards < 2:
            return 1.0
        held = [0] * self.shards
        for topic, messages in self.topics.items():
            held[topic_shard(topic, self.shards)] += messages
        return max(held) * self.shards / total


def learn(
    topics: DataFrame,
    *,
    filters: Mapping[str, int] | None = None,
    present: PatternSet | None = None,
    options: LearnOptions | None = None,
) -> LearnResult:
    """Learns pattern sets from topics and compares them.

    Args:
        topics: a column `topic` (string), and `count` (number of messages) if a row represents more than one. A table
            of the archive, a history, or a log of names will do.
        filters: the filters of readers, with their frequency; see `read_filters`. Without them each topic is a filter.
        present: the current set, to compare with.
        options: how to learn; how many levels are indexed is that of `present` if it is given.

    Raises:
        ValueError: no topics, or an invalid topic or filter.

    Example:
        >>> result = learn(spark.createDataFrame([(f"devices/{i}/temperature",) for i in range(1000)], "topic string"))
        >>> print(result.best.patterns.text.decode(), end="")
        holdmq-patterns 1 levels=8
        #
        devices/+12/temperature
    """
    how = options or LearnOptions()
    levels = present.levels if present else how.levels
    check_filters(filters or {})
    with measured("learn") as figures:
        counted = topic_counts(topics).persist()
        try:
            size = _checked_size(counted)
            figures.rows, figures.counts["topics"] = size.messages, size.topics
            chosen = Sample(_sample(counted, how.sample), levels, how.shards)
            local = size.topics <= how.local_topics and size.bytes <= LOCAL_BYTES
            table = counted.toArrow() if local else counted
            sets = learn_levels(table, how.candidates, levels=levels, max_patterns=how.max_patterns, exact=how.exact)
        finally:
            counted.unpersist()
        named = {**_named(how.candidates, sets), **how.further}
        scored = [chosen.score(name, patterns, filters) for name, patterns in named.items()]
        before = chosen.score("present", present, filters) if present else None
        figures.counts["sets"] = len(scored)
    ranked = sorted([*scored, before] if before else scored, key=lambda one: (one.cost.cost, len(one.patterns)))
    if not ranked:
        raise ValueError(f"each candidate has more than {how.max_patterns} patterns")
    return LearnResult(figures, tuple(ranked), before)


def topic_counts(topics: DataFrame) -> DataFrame:
    """Each topic with its number of messages: `topic`, `messages`.

    Raises:
        ValueError: there is no column `topic`.
    """
    if "topic" not in topics.columns:
        raise ValueError(f"the topics have the columns {topics.columns}; expected one called topic")
    messages = f.col("count").cast("long") if "count" in topics.columns else f.lit(1).cast("long")
    return topics.select("topic", messages.alias("messages")).groupBy("topic").agg(f.sum("messages").alias("messages"))


def read_filters(path: Path) -> dict[str, int]:
    """A log of filters: one in each line, by itself or followed by a tab and how often it was asked for.

    Raises:
        ValueError: a line that is neither; the message names it.
    """
    uses: dict[str, int] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line:
            continue
        name, tab, times = line.partition("\t")
        if tab and not times.isdecimal():
            raise ValueError(f"{path}, line {number}: {times!r} after the tab; expected a whole number")
        uses[name] = uses.get(name, 0) + (int(times) if tab else 1)
    check_filters(uses)
    return uses


def check_filters(filters: Mapping[str, int]) -> None:
    """Are these filters that history can be asked for?

    Raises:
        ValueError: one is invalid or a `$share` filter, or there are too many.
    """
    if len(filters) > MAX_FILTERS:
        raise ValueError(f"{len(filters)} different filters; expected at most {MAX_FILTERS}: leave out the rare ones")
    for text in filters:
        try:
            check_topic_filter(text)
        except InvalidTopicError as error:
            raise ValueError(f"{text!r} is not a topic filter: {error}") from error
        if split_share(text) is not None:
            raise ValueError(f"{text!r} is a $share filter; expected the filter after the group's name")


def learn_store(
    topics: DataFrame,
    link: Link,
    store: str,
    *,
    filters: Mapping[str, int] | None = None,
    options: LearnOptions | None = None,
    margin_percent: int = 10,
    dry_run: bool = False,
) -> LearnResult:
    """Learns, compares with what the store has, and installs the best set if it costs less by the margin.

    Args:
        topics: as of `learn`.
        link: to the servers.
        store: its name.
        filters: as of `learn`.
        options: as of `learn`.
        margin_percent: 0..100.
        dry_run: compare only.

    Raises:
        ValueError: as of `learn`, or the margin is out of its range.
        redis.ResponseError: no such store, or its generation changed meanwhile.

    Example:
        >>> result = learn_store(spark.read.format("holdmq").load(), link, "telemetry", filters={"devices/+/#": 3})
        >>> result.installed
        2
    """
    if not 0 <= margin_percent <= 100:
        raise ValueError(f"margin_percent is {margin_percent}; expected 0..100")
    generation, present = present_patterns(link, store)
    how = options or LearnOptions()
    how = replace(how, shards=how.shards or int(link.store(store)[b"shards"]))
    result = learn(topics, filters=filters, present=present, options=how)
    assert result.present is not None
    worth = result.best.cost.cost * 100 <= result.present.cost.cost * (100 - margin_percent)
    if dry_run or not worth or result.best.patterns == present:
        return result
    installed = install(link, store, result.best.patterns, after=generation)
    result.figures.counts["generation"] = installed
    return LearnResult(result.figures, result.scored, result.present, installed)


class _Size(NamedTuple):
    """The amount of data to learn from."""

    topics: int
    messages: int
    bytes: int


def _checked_size(counted: DataFrame) -> _Size:
    name = f.col("topic")
    wrong = name.isNull() | (name == "") | name.rlike(INVALID_NAME)
    row = counted.agg(
        f.count("*").alias("topics"),
        f.coalesce(f.sum("messages"), f.lit(0)).alias("messages"),
        f.coalesce(f.sum(f.octet_length(name)), f.lit(0)).alias("bytes"),
        f.count_if(wrong).alias("wrong"),
        f.min(f.when(wrong, name)).alias("first"),
    ).collect()[0]
    if row.wrong:
        raise ValueError(f"{row.first!r} among the topics is not a topic name")
    return _Size(row.topics, row.messages, row.bytes)


def _sample(counted: DataFrame, size: int) -> dict[str, int]:
    rows = counted.orderBy(f.xxhash64("topic"), "topic").limit(size).collect()
    for row in rows:
        check_topic_name(row.topic)
    return {row.topic: row.messages for row in rows}


def _named(candidates: Sequence[Candidate], sets: Sequence[PatternSet | None]) -> dict[str, PatternSet]:
    """The different sets by name; of equal ones the first."""
    named: dict[str, PatternSet] = {}
    for candidate, patterns in zip(candidates, sets, strict=True):
        if patterns is not None and patterns not in named.values():
            named[f"children>{candidate.max_children}, hot {candidate.hot_percent}%"] = patterns
    return named
