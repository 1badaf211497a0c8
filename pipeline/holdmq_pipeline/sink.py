"""The data source `holdmq`, writing: to topics, channels or sessions, in batches and streams.

A task turns its Arrow batches into commands (messages.py), sends them in chunks, packs the next chunk while one is
unanswered, and checks every reply (sender.py). For the server, the writer is a producer:

    spark:<query>:<partition>     epoch: the micro-batch + 1; chunk: the row's place in the task   (idempotentBy=task)
    spark:<query>:s<shard>        epoch: 1; chunk: the row's offset in its shard                   (idempotentBy=offset)

<query> is Spark's id of a streaming query, the option writeId, or an id of this write alone. A repeated task sends the
same numbers, so the server stores nothing twice. With `task` a retry must see the rows in the same order: only narrow
steps between source and sink. With `offset` each shard must be in one task, in order, after any steps:
`repartition(n, "shard").sortWithinPartitions("shard", "offset")`.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdmq_pipeline.errors import OptionError, PipelineError
from holdmq_pipeline.history_reader import without_collector
from holdmq_pipeline.messages import CHUNK_ROWS_MAX, Maker, check_columns
from holdmq_pipeline.options import SINKS, WRITE, Options
from holdmq_pipeline.sender import Sender, Written
from holdmq_pipeline.wire import Link

__all__ = ["send_all", "stream_writer", "writer"]

log = logging.getLogger(__name__)


def writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The batch writer of a target.

    Raises:
        OptionError: columns or options that cannot be, or another mode than append.
    """
    return BatchWriter(_checked(given, schema, overwrite))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The stream writer of a target; errors as of `writer`.

    Raises:
        OptionError: there is a writeId, which is that of a batch.
    """
    options = _checked(given, schema, overwrite)
    if "writeId" in options:
        raise OptionError("option writeId is of no use for a stream: its id is that of its checkpoint")
    return StreamWriter(options)


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> Options:

    if overwrite:
        raise OptionError('the mode is overwrite; expected append: .mode("append")')
    options = Options({name: value for name, value in given.items() if name.lower() not in _OF_SPARK}, WRITE)
    target = options.choice("table", SINKS)
    for name in ("idempotent",):
        options.flag(name)
    by = options.choice("idempotentBy", ("task", "offset"))
    options.required("chunkRows", 1, CHUNK_ROWS_MAX)
    options.number("maxRowsPerSecond")
    options.seconds("ttl", 1, 2**31 - 1)
    options.number("limit", 1, 65_535)
    check_columns(target, schema.fieldNames(), by_offset=by == "offset")
    return options


_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of a stream that Spark hands to the sink, too."""


def _write(options: Options, query: str, epoch: int, iterator: Iterator[pa.RecordBatch]) -> Written:
    """A task: sends what comes."""
    task = TaskContext.get()
    if task is None:
        raise PipelineError("no task is running; expected to be called by Spark")
    with Link(options) as link, without_collector():
        return send_all(link, options, f"spark:{query}", task.partitionId(), epoch, iterator)


def send_all(
    link: Link, options: Options, name: str, partition: int, epoch: int, batches: Iterable[pa.RecordBatch]
) -> Written:
    """Sends the rows of a task.

    Args:
        link: where to.
        options: of the write.
        name: the producer's, as far as it is the same for all tasks.
        partition: the task's.
        epoch: the producer's.
        batches: the rows.

    Raises:
        PipelineError: a row that cannot be written, or a server refused it.
    """
    sender = Sender(link, options)
    maker = Maker(options, name, partition, epoch, sharded=link.is_cluster)
    try:
        for batch in batches:
            for chunk in maker.add(batch):
                sender.send(chunk)
        sender.send(maker.rest())
        return sender.finish()
    finally:
        sender.close()


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._query = options.text("writeId") or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One partition, in a task."""
        return _write(self._options, self._query, 1, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All was stored by then."""
        _log(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was stored stays: the same write again repeats nothing of it if it has a writeId."""
        _log(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One partition of a micro-batch, in a task."""
        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId") if task else None
        batch = task.getLocalProperty("streaming.sql.batchId") if task else None
        if not query or batch is None:
            raise PipelineError(
                "the task has no query id or batch id; expected a streaming query of Spark 4.2 or later"
            )
        return _write(self._options, query, int(batch) + 1, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All was stored by then."""
        _log(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The batch comes again, and repeats nothing."""
        _log(messages)


def _log(messages: list[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    total = Written(
        *(sum(getattr(one, name) for one in done) for name in ("rows", "stored", "repeated", "expired", "trimmed"))
    )
    log.info("%s", total)
