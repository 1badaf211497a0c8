"""The layout of an archive's files, so that a filter and a time find their rows without reading the others.

    date=2026-11-22/<structure>/...parquet      a directory for each day and structure

A structure is a learned pattern without its numbers of bits: `site/+/dev/+/temperature`. Its varying levels are columns
of their own, l1, l2 ... (for a `#` all levels from there on), besides the whole topic. In a file, rows are sorted by a
grid:

    l1 in groups │ l2 in groups │ ... │ l1, l2 ... │ time

Each value of the first varying level that has more than one value is a group. Later levels have a group for each eight
values or so, as long as the cells have a page of rows. Pages are small (`PAGE_ROWS`), with an index of their minimum
and maximum values. So Parquet's readers, Spark's included, decode only the pages of the cells that a filter fixes: for
a fixed first level one stripe, for a fixed later level the same cell of each stripe.

The price: files are about a quarter larger than with large pages (measured).
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["LEVELS", "SCHEMA", "ArchiveFile", "arranged", "levels_of", "overlap", "part_path", "parts", "write_file"]

LEVELS = 8
PAGE_ROWS = 128
ROW_GROUP_ROWS = 1 << 17
LATER_GROUP = 8
DAY_US = 86_400_000_000
MICROSECONDS = pa.timestamp("us", tz="UTC")
LEVEL_NAMES = tuple(f"l{number + 1}" for number in range(LEVELS))
SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", MICROSECONDS),
        pa.field("topic", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("qos", pa.int8()),
        pa.field("retain", pa.bool_()),
        pa.field("publisher", pa.string()),
        pa.field("properties", pa.binary()),
        pa.field("published", MICROSECONDS),
        pa.field("expires", MICROSECONDS),
        *(pa.field(name, pa.string()) for name in LEVEL_NAMES),
    ]
)
"""What a file has; a column that is null in all rows of a file is left out of it."""
WITH_STATISTICS = ["shard", "offset", "timestamp", "topic", *LEVEL_NAMES]
MAX_STATISTICS_TEXT = 64


@dataclass
class ArchiveFile:
    """A file of an archive.

    Attributes:
        path: within the table.
        date: of its messages, UTC.
        structure: of their topics.
        size: in bytes.
        rows: messages.
        least: smallest values by column: shard, offset, timestamp (microseconds since 1970).
        most: largest values.
    """

    path: str
    date: str
    structure: str
    size: int
    rows: int
    least: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)


def structure_of(pattern: str) -> str:
    """A pattern's line without the bits after its wildcards: `devices/+18/pressure` is `devices/+/pressure`."""
    return "/".join(level[0] if level[:1] in {"+", "#"} else level for level in pattern.split("/"))


def levels_of(structure: str, topic: str) -> list[str | None]:
    """The varying levels of a topic; None where it has none.

    Example:
        >>> levels_of("site/+/dev/#", "site/5/dev/7/temperature")[:4]
        ['5', '7', 'temperature', None]
    """
    found: list[str | None] = []
    levels = topic.split("/")
    for at, level in enumerate(structure.split("/")):
        if level == "+":
            found.append(levels[at] if at < len(levels) else None)
        elif level == "#":
            found += levels[at:]
    return (found + [None] * LEVELS)[:LEVELS]


def fixed_levels(structure: str, topic_filter: str) -> dict[str, str]:
    """The levels that a filter fixes, by their columns.

    Example:
        >>> fixed_levels("site/+/dev/+/state", "site/+/dev/7/#")
        {'l2': '7'}
    """
    fixed: dict[str, str] = {}
    wanted = topic_filter.split("/")
    varying = 0
    for at, level in enumerate(structure.split("/")):
        tail = wanted[at:] if level == "#" else wanted[at : at + 1]
        if level not in {"+", "#"}:
            if tail == ["#"]:
                break
            continue
        for value in tail:
            if value == "#" or varying >= LEVELS:
                return fixed
            if value != "+":
                fixed[LEVEL_NAMES[varying]] = value
            varying += 1
    return fixed


def overlap(structure: str, topic_filter: str) -> bool:
    """May a topic of this structure match the filter?"""
    own, wanted = structure.split("/"), topic_filter.split("/")
    for at in range(max(len(own), len(wanted))):
        a = own[at] if at < len(own) else None
        b = wanted[at] if at < len(wanted) else None
        if "#" in {a, b}:
            return True
        if a is None or b is None:
            return False
        if a != b and "+" not in {a, b}:
            return False
    return True


def parts(table: pa.Table, structures: dict[tuple[int, int], str]) -> Iterator[tuple[str, str, pa.Table]]:
    """Rows of HISTORY.RANGE by date and structure; `structures` by generation and pattern.

    `table` has the columns of `SCHEMA` up to expires, and pattern and generation.
    """
    days = table.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US
    keys = np.stack([days, table.column("generation").to_numpy(), table.column("pattern").to_numpy()], axis=1)
    values, places = np.unique(keys, axis=0, return_inverse=True)
    places = places.reshape(-1)
    order = np.argsort(places, kind="stable")
    cuts = np.searchsorted(places[order], np.arange(len(values) + 1))
    together: dict[tuple[str, str], list[Any]] = {}
    for at, (day, generation, pattern) in enumerate(values):
        name = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=int(day))).date().isoformat()
        structure = structures[int(generation), int(pattern)]
        together.setdefault((name, structure), []).append(order[cuts[at] : cuts[at + 1]])
    rows = table.drop_columns(["pattern", "generation"])
    for (name, structure), own in together.items():
        yield name, structure, rows.take(pa.array(np.concatenate(own)))


def arranged(table: pa.Table, structure: str) -> pa.Table:
    """The rows in the order of the grid, with the columns of the varying levels."""
    topics = table.column("topic").combine_chunks().dictionary_encode()
    levels = [levels_of(structure, topic) for topic in topics.dictionary.to_pylist()]
    arrays = [pa.array([one[at] for one in levels], pa.string()).take(topics.indices) for at in range(LEVELS)]
    times = table.column("timestamp").cast(pa.int64()).to_numpy()
    ranks, counts = zip(*(_ranks(array) for array in arrays), strict=True)
    cells = max(table.num_rows // PAGE_ROWS, 1)
    groups = []
    is_first = True
    for rank, count in zip(ranks, counts, strict=True):
        if count < 2:
            continue
        wanted = min(count if is_first else -(-count // LATER_GROUP), max(cells, 1))
        groups.append(rank * wanted // count)
        cells //= wanted
        is_first = False
    keys = [*groups, *(rank for rank, count in zip(ranks, counts, strict=True) if count > 1), times]
    order = np.lexsort(tuple(reversed(keys)))
    for name, array in zip(LEVEL_NAMES, arrays, strict=True):
        table = table.append_column(name, array)
    return table.take(pa.array(order)).select(SCHEMA.names)


def _ranks(values: pa.Array) -> tuple[Any, int]:
    """The place of each value among the different ones in order, null first, and how many there are."""
    encoded = pc.fill_null(values, "").dictionary_encode()
    place = np.empty(len(encoded.dictionary), np.int64)
    place[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    return place[encoded.indices.to_numpy()], len(encoded.dictionary)


def part_path(day: str, structure: str, name: str) -> str:
    """The path of a file in its table. It has a hash of the structure, whose name may have any character."""
    short = hashlib.sha256(structure.encode()).hexdigest()[:12]
    return f"date={day}/{short}/{name}-{uuid.uuid4().hex}.parquet"


def write_file(table: pa.Table, sink: Any, *, page_rows: int = PAGE_ROWS) -> None:
    """Writes arranged rows."""
    present = [name for name in table.schema.names if table.column(name).null_count < table.num_rows]
    pq.write_table(
        table.select(present),
        sink,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
        max_rows_per_page=page_rows,
        write_page_index=True,
        write_statistics=[name for name in WITH_STATISTICS if name in present],
        use_dictionary=[name for name in ("topic", "publisher", *LEVEL_NAMES) if name in present],
        coerce_timestamps="us",
        store_schema=False,
    )


def bounds(table: pa.Table) -> tuple[dict[str, int], dict[str, int]]:
    """Smallest and largest shard, offset and time."""
    least, most = {}, {}
    for name in ("shard", "offset", "timestamp"):
        values = table.column(name)
        found = pc.min_max(values.cast(pa.int64()) if name == "timestamp" else values)
        least[name], most[name] = found["min"].as_py(), found["max"].as_py()
    return least, most


def whole(table: pa.Table) -> pa.Table:
    """A file's rows, with the omitted columns."""
    for at, wanted in enumerate(SCHEMA):
        if wanted.name not in table.schema.names:
            table = table.add_column(at, wanted, pa.nulls(table.num_rows, wanted.type))
    return table.select(SCHEMA.names).cast(SCHEMA)


def day_of(text: str) -> date:
    """A partition's date."""
    return date.fromisoformat(text)


def names_of(columns: Sequence[str]) -> list[str]:
    """Those of the wanted columns that an archive has."""
    return [name for name in columns if name in SCHEMA.names]
