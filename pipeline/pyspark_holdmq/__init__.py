"""The data source `holdmq`, where Spark looks for it: `spark.read.format("holdmq")` works without registration.

In each session, Spark imports every top-level module whose name begins with `pyspark_`, and takes its class
`DefaultSource`. So this file imports nothing but Spark's own base class. The rest is imported when a table is read or
written.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Tables of a HoldMQ server or cluster; docs/pipeline.md has options and columns."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Spark's own dictionary forgets how the caller wrote a name, which the error for an unknown one should show.
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "holdmq"

    def schema(self) -> str:
        """All columns of the table that the option `table` names."""
        from holdmq_pipeline import source

        return source.schema(self._given)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Reads a table once."""
        from holdmq_pipeline import source

        return source.reader(self._given, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802 - Spark's name
        """Follows a table."""
        from holdmq_pipeline import source

        return source.stream_reader(self._given, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Writes a DataFrame to topics, channels or sessions."""
        from holdmq_pipeline import sink

        return sink.writer(self._given, schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        """Writes a stream likewise."""
        from holdmq_pipeline import sink

        return sink.stream_writer(self._given, schema, overwrite)
