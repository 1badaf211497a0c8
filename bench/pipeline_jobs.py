"""The jobs learn, migrate and audit, for `make bench-pipeline`; each runs once, beside its counterpart without Spark.

learn    patterns of many topics, seven sets scored, in the driver and in Spark alone, beside the learner in C that
         gets each topic from Python (which gives one set and has no room for hot children below merged levels)
migrate  a TBMQ keyspace into sessions, compared afterwards, beside a loop over redis-py, client by client, that
         compares nothing
audit    a world without faults, which takes as long as one with faults; beside the same joins in pandas
"""

import base64
import json
import time
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession

from bench.pair import HOST, Bench, running
from bench.pipeline_figures import Cases
from holdmq.core import PatternLearner, Record
from holdmq_pipeline.jobs.audit import Evidence, audit
from holdmq_pipeline.jobs.learn import LearnOptions, learn
from holdmq_pipeline.jobs.migrate import migrate
from holdmq_pipeline.options import Options
from holdmq_pipeline.session_plan import Target
from holdmq_pipeline.tbmq import Rules, from_keyspace
from holdmq_pipeline.tbmq_messages import message_of_json

PER_CLIENT = 50
SUFFIXES = ("temperature", "pressure", "state/battery", "state/network", "config")
SPARK_ROWS = 200_000


def topics_of(spark: SparkSession, rows: int) -> DataFrame:
    """Topics of a fleet: sites with devices, five suffixes each."""
    suffix = " ".join(f"when id % 5 = {i} then '{name}'" for i, name in enumerate(SUFFIXES))
    return spark.range(rows).selectExpr(
        f"concat('site/', id % 50, '/dev/', cast(id / 5 as long), '/', case {suffix} end) as topic"
    )


def learn_in_c(rows: int) -> PatternLearner:
    """The learner in C, told each topic from Python."""
    learner = PatternLearner()
    for i in range(rows):
        learner.observe(f"site/{i % 50}/dev/{i // 5}/{SUFFIXES[i % 5]}")
    learner.patterns()
    return learner


def learn_case(cases: Cases, spark: SparkSession, topics: int) -> None:
    """Learning."""
    learn(topics_of(spark, 1000))
    ours = cases.once("learn", "seven sets, in the driver", topics, lambda: learn(topics_of(spark, topics)))
    few = min(topics, SPARK_ROWS)
    spread = LearnOptions(local_topics=0)
    cases.once("learn", "seven sets, in Spark", few, lambda: learn(topics_of(spark, few), options=spread))
    plain = cases.once("learn", "the learner in C, told from Python, one set", topics, lambda: learn_in_c(topics))
    cases.figures[-3].against, cases.figures[-3].ratio = "the learner in C, told from Python", ours / plain


def fill_keyspace(client: redis.Redis, clients: int) -> None:
    """Queues as TBMQ 2.x keeps them."""
    payload = base64.b64encode(b"x" * 60).decode()
    text = {"packetType": "PUBLISH", "payload": payload, "time": 1, "topicName": "t", "qos": 1}
    for c in range(clients):
        pipeline = client.pipeline(transaction=False)
        key = f"{{device-{c}}}"
        names = {f"{key}_messages_{n}": n for n in range(1, PER_CLIENT + 1)}
        pipeline.mset({name: json.dumps({**text, "packetId": n}) for name, n in names.items()})
        pipeline.zadd(f"{key}_messages", names)
        pipeline.set(f"{key}_last_packet_id", PER_CLIENT)
        pipeline.execute()


def one_by_one(old: redis.Redis, new: redis.Redis, clients: int) -> None:
    """A migration as one would write it: client by client, by one process, not compared."""
    for c in range(clients):
        key = f"{{device-{c}}}"
        members: Any = old.zrange(f"{key}_messages", 0, -1, withscores=True)
        words: list[Any] = []
        texts: Any = old.mget([name for name, _score in members])
        for (member, score), text in zip(members, texts, strict=True):
            message = message_of_json(text.encode())
            record = Record(qos=1, time_ms=message.time_ms, topic=message.topic.encode(), payload=message.payload)
            words += [member.rpartition("_")[2], int(score), 0, 0, record.encode()]
        new.execute_command("SESSION.IMPORT", key, "MESSAGES", len(members), *words)


def url_of(server: Bench) -> str:
    """Where it listens."""
    return f"redis://{HOST}:{server.admin.connection_pool.connection_kwargs['port']}"


def migrate_case(cases: Cases, spark: SparkSession, clients: int) -> None:
    """From one server into another."""
    rows = clients * PER_CLIENT
    with running(module=False, aof=False) as old, running(module=True, aof=False) as new:
        fill_keyspace(old.admin, clients)
        source = from_keyspace(spark, Options({"url": url_of(old)}), Rules(int(time.time() * 1000)), partitions=2)
        target = Target(Options({"url": url_of(new)}))
        migrate(source, target, execute=True)  # the warm-up
        new.admin.flushall()
        ours = cases.once("migrate", "keyspace, compared", rows, lambda: migrate(source, target, execute=True))
        new.admin.flushall()
        by_hand = cases.once(
            "migrate",
            "redis-py, client by client, not compared",
            rows,
            lambda: one_by_one(old.admin, new.admin, clients),
        )
        cases.figures[-2].against, cases.figures[-2].ratio = "redis-py, client by client", ours / by_hand


def audit_case(cases: Cases, spark: SparkSession, rows: int) -> None:
    """Nothing is wrong, which takes as long as if it were."""
    sent = spark.range(rows).selectExpr(
        "cast(id as string) as message",
        "concat('device-', id % 1000) as publisher",
        "concat('t/', id % 1000) as topic",
        "id div 1000 as number",
        "timestamp_millis(1700000000000 + id) as time",
        "100L as bytes",
    )
    stored = sent.selectExpr("message", "cast(substr(topic, 3) as int) % 4 as shard", "cast(message as long) as offset")
    got = sent.selectExpr(
        "message", "'all' as client", "cast(message as long) as position", "time + interval 20 milliseconds as time"
    )
    frames = [frame.toPandas() for frame in (sent, stored, got)]
    ours = cases.once("audit", "all tables", rows, lambda: audit(Evidence(sent, stored=stored, delivered=got)))
    plain = cases.once("audit", "pandas: losses, duplicates, latency alone", rows, lambda: audit_in_pandas(*frames))
    cases.figures[-2].against, cases.figures[-2].ratio = "pandas, three of the tables", ours / plain


def audit_in_pandas(sent: Any, stored: Any, got: Any) -> None:
    """What one would do by hand, of tables that are in memory."""
    for found in (stored, got):
        found.duplicated("message").sum()
        (~sent["message"].isin(found["message"])).sum()
    both = sent.merge(got, on="message", suffixes=("_sent", "_got"))
    took = (both["time_got"] - both["time_sent"]).dt.total_seconds() * 1000
    took.groupby(both["topic"]).quantile([0.5, 0.95, 0.99])
