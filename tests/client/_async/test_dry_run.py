"""Dry runs: what a policy would hold, as the client reports it."""

import pytest
import redis

from holdmq import ArgumentError, AsyncHoldMQ, Hold
from holdmq.errors import CommandError


async def test_a_report_says_what_would_be_held_most_messages_first(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "")
    client.set("jobs", "the application's")
    await hold.dry_run.start(seconds="1h", policies="news* hold=all; jobs; control hold=none")
    for channel in ("jobs", "news:1", "news:1", "control"):
        await hold.channel(channel).publish("four")
    report = await hold.dry_run.report()
    assert [(row.channel, row.messages, row.bytes, row.rule, row.hold, row.key) for row in report.channels] == [
        ("news:1", 2, 8, "news*", Hold.ALL, False),
        ("jobs", 1, 4, "jobs", Hold.UNHEARD, True),
        ("control", 0, 0, "control", Hold.NONE, False),
    ]
    summary = report.summaries[0]
    assert (summary.messages, summary.bytes, summary.channels, summary.running) == (3, 12, 3, True)
    assert summary.policies == "news* hold=all; jobs; control hold=none"
    assert await hold.dry_run.stop()
    assert not await hold.dry_run.stop()
    assert not (await hold.dry_run.report()).summaries[0].running
    assert client.keys() == [b"jobs"]


async def test_a_report_of_many_channels_is_complete(hold: AsyncHoldMQ, client: redis.Redis) -> None:
    client.config_set("holdmq.policies", "")
    await hold.dry_run.start(policies="*")
    pipeline = client.pipeline(transaction=False)
    for number in range(2500):
        pipeline.publish(b"\xff%d" % number, "m")
    pipeline.execute()
    rows = (await hold.dry_run.report()).channels
    assert len({row.channel for row in rows}) == len(rows) == 2500


async def test_wrong_arguments_are_named(hold: AsyncHoldMQ) -> None:
    with pytest.raises(ArgumentError, match="seconds is 0"):
        await hold.dry_run.start(seconds=0)
    with pytest.raises(CommandError, match="POLICIES"):
        await hold.dry_run.start(policies="a hold=some")
