"""Prepares Arrow columns of rows to be written for the encoder in C (holdmq.core.batch).

Texts are not copied. Numbers become int64 without nulls, a column at a time. This is the one place that says what a
null means.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdmq.core.batch import Texts
from holdmq_pipeline.errors import PipelineError

__all__ = ["Columns", "sizes"]

EMPTY = b""
NO_OFFSETS = b"\0\0\0\0"


class Columns:
    """The columns of some rows.

    Args:
        batches: of one schema.
    """

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.rows = sum(batch.num_rows for batch in batches)
        self._columns: dict[str, pa.Array] = {
            name: pa.concat_arrays([batch.column(at) for batch in batches])
            for at, name in enumerate(batches[0].schema.names)
            if self.rows
        }

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def array(self, name: str) -> pa.Array:
        """A column of texts or bytes, as bytes."""
        column = self._columns[name]
        return column if column.type == pa.binary() else column.cast(pa.binary())

    def texts(self, name: str) -> Texts:
        """Its buffers."""
        column = self.array(name)
        valid, offsets, data = column.buffers()
        valid = valid if column.null_count else None
        return Texts(data or EMPTY, offsets or NO_OFFSETS, valid, column.offset)

    def numbers(self, name: str, null: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A column of numbers or booleans, with something else for null."""
        filled = pc.fill_null(self._columns[name].cast(pa.int64()), null)
        return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))

    def times_us(self, name: str, null: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A column of times, in microseconds since 1970."""
        column = self._columns[name]
        whole = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        return np.ascontiguousarray(pc.fill_null(whole, null).to_numpy(zero_copy_only=False))

    def required(self, name: str) -> None:
        """Has every row something here?

        Raises:
            PipelineError: one has not.
        """
        column = self.array(name)
        if column.null_count or pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
            raise PipelineError(f"a row has no {name}; expected one in every row")

    def ttl_s(self, ttl: int | None) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Seconds that each message has left; -1: no limit of its own, 0: it is past its expiry. None: all are -1."""
        if ttl is None and "ttl" not in self and "expires" not in self:
            return None
        lives = np.full(self.rows, -1 if ttl is None else ttl, np.int64)
        if "expires" in self:
            ends = self.times_us("expires", -1)
            left = np.maximum((ends / 1e6 - time.time() + 0.999).astype(np.int64), 0)
            lives = np.where(ends >= 0, left, lives)
        if "ttl" in self:
            own = self.numbers("ttl", -1)
            null = pc.is_null(self._columns["ttl"]).to_numpy(zero_copy_only=False)
            lives = np.where(null, lives, np.maximum(own, 0))
        return np.ascontiguousarray(lives)

    def lists(self) -> Mapping[str, list[Any]]:
        """Everything as Python has it."""
        return {name: column.to_pylist() for name, column in self._columns.items()}

    def row(self, at: int) -> dict[str, Any]:
        """One row as Python has it."""
        return {name: column[at].as_py() for name, column in self._columns.items()}


def sizes(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each row of a column of texts."""
    lengths = pc.fill_null(pc.binary_length(batch.column(batch.schema.get_field_index(name))), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]
