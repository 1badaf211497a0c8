"""The common parts of the commands `holdmq pipeline ...`: the session, the server's address, figures, errors.

Spark and the jobs are loaded by the command that needs them, not when `holdmq` looks for its commands.
"""

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from holdmq.cli_output import Group, output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdmq_pipeline.figures import JobFigures
    from holdmq_pipeline.options import Options


class Refusing(Group):
    """Shows what a job refused as an error of the command line, without a trace."""

    def invoke(self, context: click.Context) -> Any:
        """Runs the command."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - loads Spark's Python side

        from holdmq_pipeline.errors import PipelineError  # noqa: PLC0415
        from holdmq_pipeline.java import JavaMissingError  # noqa: PLC0415

        try:
            return super().invoke(context)
        except (JavaMissingError, PipelineError, PySparkException) as error:
            raise click.ClickException(error_text(str(error))) from error


def error_text(text: str) -> str:
    """The text of an error. If Spark wraps an error of the pipeline in traces, the pipeline's text alone."""
    ours = re.findall(r"^\s*holdmq_pipeline\.\S+Error: (.+)$", text, re.MULTILINE)
    return ours[-1] if ours else text


@dataclasses.dataclass
class Setting:
    """The settings that every job shares."""

    master: str | None
    settings: dict[str, str]
    password_file: str | None

    def spark(self, *, bar: bool = True, **further: str) -> "SparkSession":
        """The session, with further settings: `spark_jars` means `spark.jars`.

        `bar`: on a terminal, Spark shows how far each of its stages is; not for a job that shows that itself.
        """
        from holdmq_pipeline.spark import spark_session  # noqa: PLC0415 - takes a second to load

        return spark_session("holdmq", master=self.master, settings=self.all_settings(bar=bar, **further))

    def all_settings(self, *, bar: bool, **further: str) -> dict[str, str]:
        """The settings of the session; those of the user win."""
        shown = str(bar and sys.stderr.isatty()).lower()
        named = {name.replace("_", "."): value for name, value in further.items()}
        return {"spark.ui.showConsoleProgress": shown, **named, **self.settings}

    @property
    def url(self) -> str:
        """The URL of the server, from `holdmq --url`."""
        return str(click.get_current_context().find_root().params["url"])

    def options(self, **given: str) -> dict[str, str]:
        """For the data source."""
        password = {"passwordFile": self.password_file} if self.password_file else {}
        return {"url": self.url, **password, **given}


def show(figures: "JobFigures") -> None:
    """The figures that a job ends with: a line, or with `holdmq --json` a JSON document."""
    if as_json():
        output().fields(figures.as_dict())
    else:
        click.echo(str(figures))


def note(text: str) -> None:
    """A report for a person; with `holdmq --json` it goes to standard error."""
    click.echo(text, err=as_json())


def as_json() -> bool:
    """Whether `holdmq --json` was given."""
    return bool(click.get_current_context().find_root().params.get("as_json"))


def loaded(spark: "SparkSession", path: str) -> "DataFrame":
    """The table at a path."""
    from holdmq_pipeline.inputs import read_table  # noqa: PLC0415

    return read_table(spark, path)


def history(spark: "SparkSession", setting: Setting, store: str) -> "DataFrame":
    """The server's messages of a store: topic, payload and place only, unless more columns are requested."""
    return spark.read.format("holdmq").options(**setting.options(store=store)).load()


def checked(given: dict[str, str]) -> "Options":
    """Options of the data source; empty ones are left out."""
    from holdmq_pipeline.options import Options  # noqa: PLC0415

    return Options({name: value for name, value in given.items() if value})
