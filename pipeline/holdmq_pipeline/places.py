"""Paths that mean the same in every process of a job.

A task runs in a folder of its executor's, on a cluster on another machine: a path that counts from the folder in which
the job was started names something else there. So paths are made whole where a job begins, before tasks get them. That
other machines have the same files under them is up to who runs the cluster (docs/pipeline.md, On a cluster).
"""

from pathlib import Path
from urllib.parse import urlparse

__all__ = ["PARQUET", "whole_path"]

PARQUET = "parquet:"
"""The prefix of the path of an archive of plain Parquet."""


def whole_path(place: str) -> str:
    """A path from the root on; a URL stays as it is, and so does `parquet:` before either.

    Example:
        >>> whole_path("/data/archive"), whole_path("s3://bucket/archive"), whole_path("parquet:/data/archive")
        ('/data/archive', 's3://bucket/archive', 'parquet:/data/archive')
    """
    before = PARQUET if place.startswith(PARQUET) else ""
    path = place.removeprefix(before)
    return place if not path or urlparse(path).scheme else f"{before}{Path(path).absolute()}"
