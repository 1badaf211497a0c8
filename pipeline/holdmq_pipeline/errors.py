"""The exceptions of the pipeline: refusals and faults that it found."""

__all__ = ["ArchiveError", "DataLossError", "OptionError", "PipelineError"]


class PipelineError(Exception):
    """Base of all errors that the pipeline defines."""


class OptionError(PipelineError, ValueError):
    """An option, a column or an argument that cannot be right: names it and what was expected. Nothing was done."""


class DataLossError(PipelineError):
    """Messages that were to be read are gone; names shard and numbers. `failOnDataLoss=false` counts them instead."""


class ArchiveError(PipelineError):
    """A table that cannot be an archive of this store, or that another archiver writes at the same time."""
