"""The columns of HISTORY.RANGE ... PACKED as Arrow arrays that use the reply's bytes, without a copy.

A column of fixed width is one string of little-endian values. A column of texts or bytes is two strings: rows + 1
offsets (int32), and the data (docs/commands/history.md). Both are Arrow's own buffers. A column for which Spark has
another type is converted as a whole.

`COLUMNS` lists the columns that a history row can have: the name in Spark, the name in the command, the Arrow type.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdmq.core import mqtt
from holdmq_pipeline import schemas
from holdmq_pipeline.errors import PipelineError

__all__ = ["COLUMNS", "HEADERS", "Column", "batch", "commands_columns", "headers", "of_rows"]

MICROSECONDS = pa.timestamp("us", tz="UTC")
MAX_FIXED_WIDTH = 8


def _as_time(values: pa.Array) -> pa.Array:
    return values.view(MICROSECONDS)


def _ms_as_time(values: pa.Array) -> pa.Array:
    return pc.multiply(values, 1000).view(MICROSECONDS)


@lru_cache(maxsize=16)
def _nothing(rows: int, of: pa.DataType) -> pa.Array:
    """So many nulls. Most batches have the same number of rows, and arrays are never changed."""
    return pa.nulls(rows, of)


@lru_cache(maxsize=16)
def _shards(rows: int, shard: int) -> pa.Array:
    """A column of one shard."""
    return pa.repeat(pa.scalar(shard, pa.int32()), rows)


def _ms_as_time_or_never(values: pa.Array) -> pa.Array:
    if not np.frombuffer(values.buffers()[1], np.int64).any():
        return _nothing(len(values), MICROSECONDS)
    never = pc.equal(values, 0)
    return pc.if_else(never, pa.scalar(None, pa.int64()), pc.multiply(values, 1000)).view(MICROSECONDS)


def _as_flag(values: pa.Array) -> pa.Array:
    return pc.not_equal(values, pa.scalar(0, values.type))


def _or_null(values: pa.Array) -> pa.Array:
    """Empty means that there is none."""
    if values.buffers()[2].size == 0:
        return _nothing(len(values), values.type)
    return pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, values.type), values)


@dataclass(frozen=True)
class Column:
    """A column of the table history.

    Attributes:
        name: in Spark.
        sql: its type in Spark.
        source: in HISTORY.RANGE.
        packed: the type in the reply.
        convert: makes the type that Spark expects.
    """

    name: str
    sql: str
    source: str
    packed: pa.DataType
    convert: Callable[[pa.Array], pa.Array] | None = None


COLUMNS = (
    Column("offset", "long", "sequence", pa.int64()),
    Column("timestamp", "timestamp", "time", pa.int64(), _as_time),
    Column("topic", "string", "topic", pa.string()),
    Column("payload", "binary", "payload", pa.binary()),
    Column("qos", "byte", "qos", pa.int8()),
    Column("retain", "boolean", "retain", pa.int8(), _as_flag),
    Column("publisher", "string", "publisher", pa.string(), _or_null),
    Column("properties", "binary", "properties", pa.binary(), _or_null),
    Column("published", "timestamp", "published", pa.int64(), _ms_as_time),
    Column("expires", "timestamp", "expires", pa.int64(), _ms_as_time_or_never),
    Column("pattern", "int", "pattern", pa.int32()),
    Column("generation", "int", "generation", pa.int32()),
)
SHARD = "shard"
HEADERS = {
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
    "headers": pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))),
}
_BY_NAME = {column.name: column for column in COLUMNS}


def commands_columns(names: Sequence[str]) -> list[Column]:
    """The columns to request for these columns of Spark."""
    wanted = [_BY_NAME[name] for name in names if name in _BY_NAME]
    if any(name in HEADERS for name in names) and _BY_NAME["properties"] not in wanted:
        wanted.append(_BY_NAME["properties"])
    return wanted or [_BY_NAME["offset"]]


def batch(
    names: Sequence[str], shard: int, rows: int, asked: Sequence[Column], replies: Sequence[Any]
) -> pa.RecordBatch:
    """The columns of one reply as Spark expects them, in this order.

    Raises:
        PipelineError: the reply has another form than requested.
    """
    if len(asked) != len(replies):
        raise PipelineError(f"HISTORY.RANGE answered {len(replies)} columns; expected {len(asked)}")
    made = {column.name: _array(column, rows, reply) for column, reply in zip(asked, replies, strict=True)}
    made[SHARD] = _shards(rows, shard) if SHARD in names else None
    if any(name in HEADERS for name in names):
        made.update(headers(made["properties"]))
    return pa.RecordBatch.from_arrays([made[name] for name in names], names=list(names))


ROW_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "tinyint": pa.int8(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": MICROSECONDS,
    "array<int>": pa.list_(pa.field("element", pa.int32())),
}
"""Of the other tables: Spark's names and Arrow's types."""


def of_rows(names: Sequence[str], table: str, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of another table than history; what a row does not have is null. Times are in microseconds since 1970."""
    types = schemas.column_types(table)
    arrays = [pa.array([row.get(name) for row in rows], ROW_TYPES[types[name]]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _array(column: Column, rows: int, reply: Any) -> pa.Array:
    """One column of a reply."""
    if isinstance(reply, (list, tuple)):
        sizes = [len(part) for part in reply]
        if len(sizes) != 2 or sizes[0] != 4 * (rows + 1):
            raise PipelineError(
                f"column {column.source} came in parts of {sizes} bytes; expected {4 * (rows + 1)} and data"
            )
        buffers = [None, pa.py_buffer(reply[0]), pa.py_buffer(reply[1])]
    else:
        if len(reply) != rows * column.packed.bit_width // 8:
            raise PipelineError(f"column {column.source} came with {len(reply)} bytes; expected {rows} values")
        buffers = [None, pa.py_buffer(reply)]
    values = pa.Array.from_buffers(column.packed, rows, buffers)
    return column.convert(values) if column.convert else values


def headers(properties: pa.Array) -> dict[str, pa.Array]:
    """MQTT 5.0 properties as columns: row by row, but only those that have any."""
    columns: dict[str, list[Any]] = {name: [] for name in HEADERS}
    for value in properties:
        found = _decoded(value.as_py())
        for name, values in columns.items():
            values.append(found.get(name))
    return {name: pa.array(values, HEADERS[name]) for name, values in columns.items()}


def _decoded(data: bytes | None) -> dict[str, Any]:
    if not data:
        return {}
    found = mqtt.decode_properties(data)
    return {
        "content_type": _text(found.content_type),
        "response_topic": _text(found.response_topic),
        "correlation_data": found.correlation_data,
        "headers": [{"key": _text(key), "value": _text(value)} for key, value in found.user_properties],
    }


def _text(value: bytes | str | None) -> str | None:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
