"""The version of HoldMQ that runs."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Of the package; "unknown" if it was not installed."""
    try:
        return version("holdmq")
    except PackageNotFoundError:
        return "unknown"
