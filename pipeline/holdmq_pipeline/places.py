"""Makes paths that mean the same in every process of a job.

A task runs in a folder of its executor, on a cluster on another machine: a relative path would name something else
there. So a job makes paths absolute before tasks get them. The operator of the cluster provides the same files under
these paths on all machines (docs/pipeline.md, On a cluster).
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
