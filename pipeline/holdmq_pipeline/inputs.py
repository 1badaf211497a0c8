"""Loads the tables that a job gets as paths: Delta, Parquet, CSV with a header, or JSON lines.

A Delta table is read through its log (`deltalake` says which files are current). Spark reads the files itself, so no
jar is needed. The columns by which the table is partitioned are taken from the paths of the files.
"""

import json
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

FORMATS = ("delta", "parquet", "csv", "json")


def format_of(path: str) -> str:
    """The format of the files: Delta for a folder with `_delta_log`, else by the ending; Parquet without one."""
    if Path(path, "_delta_log").is_dir():
        return "delta"
    name = path.rstrip("/")
    return next((known for known in FORMATS if name.endswith((f".{known}", f".{known}.gz"))), "parquet")


def read_table(spark: SparkSession, path: str, form: str | None = None) -> DataFrame:
    """The table at a path.

    Args:
        spark: the session.
        path: a file or folder, or a URL that Spark can read.
        form: one of `FORMATS`; None: as `format_of` finds.

    Raises:
        ValueError: the format is unknown.
        FileNotFoundError: a Delta table without any file.
    """
    found = form or format_of(path)
    if found not in FORMATS:
        raise ValueError(f"format is {found!r}; expected one of {', '.join(FORMATS)}")
    if found == "delta":
        table = DeltaTable(path)
        files = table.file_uris()
        if not files:
            raise FileNotFoundError(f"the Delta table {path} has no rows yet")
        schema = StructType.fromJson(json.loads(table.schema().to_json()))  # a file may lack columns that are all null
        return spark.read.schema(schema).option("basePath", path).parquet(*files)
    if found == "csv":
        return spark.read.option("header", True).option("inferSchema", True).csv(path)
    return spark.read.format(found).load(path)
