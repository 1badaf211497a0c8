"""The messages of the pipeline's benchmark: a fleet of 10,000 devices, computed from their numbers alone."""

import numpy as np
import pyarrow as pa
import redis

from holdmq import core
from holdmq_pipeline import layout

STORE = "fleet"
DEVICES = 10_000
IMPORT = 5_000
PATTERNS = "holdmq-patterns 1 levels=8\n#\nsite/+/dev/+/state\nsite/+/dev/+/temperature\n"
DAY_ROWS = 4_000_000
SITES = 20


def topic_of(number: int) -> str:
    """Of a message."""
    device = number * 7919 % DEVICES
    return f"site/{device % SITES}/dev/{device}/{'temperature' if number % 4 else 'state'}"


def payload_of(number: int) -> bytes:
    """62 bytes of JSON."""
    return b'{"celsius": %05.2f, "humidity": %05.2f, "seq": %012d, "ok": 1}' % (
        number % 400 / 10,
        number % 970 / 10,
        number,
    )


def make_store(client: redis.Redis) -> None:
    """A store of one shard with a pattern set."""
    client.execute_command("HISTORY.STORE", STORE, "FILTER", "#")
    client.execute_command("HISTORY.PATTERNS", "PREPARE", STORE, 2, PATTERNS)
    client.execute_command("HISTORY.PATTERNS", "COMMIT", STORE, 2)


def fill_history(client: redis.Redis, rows: int) -> None:
    """A store with so many messages."""
    make_store(client)
    for begin in range(0, rows, IMPORT):
        records = [
            core.Record(
                qos=1, topic=topic_of(n).encode(), payload=payload_of(n), time_ms=1_700_000_000_000 + n
            ).encode()
            for n in range(begin, min(begin + IMPORT, rows))
        ]
        client.execute_command("HISTORY.IMPORT", STORE, 0, "RECORD", *records)


def a_day(structure_kind: str, rows: int, first_us: int) -> pa.Table:
    """So many messages of a structure over a day: each device of each site in turn, at random times."""
    random = np.random.default_rng(7)
    devices = random.integers(0, DEVICES, rows)
    times = np.sort(random.integers(0, layout.DAY_US, rows)) + first_us
    topics = [f"site/{device % SITES}/dev/{device}/{structure_kind}" for device in devices.tolist()]
    columns = {
        "shard": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array(np.arange(1, rows + 1)),
        "timestamp": pa.array(times).cast(layout.MICROSECONDS),
        "topic": pa.array(topics),
        "payload": pa.array([payload_of(number) for number in range(rows)]),
        "qos": pa.array(np.ones(rows, np.int8)),
        "retain": pa.array(np.zeros(rows, bool)),
    }
    for field in list(layout.SCHEMA)[7 : -layout.LEVELS]:
        columns[field.name] = pa.nulls(rows, field.type)
    return pa.table(columns)
