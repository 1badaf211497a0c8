"""Common parts of the commands of `holdmq-bridge auth`."""

from typing import Any

import click

from holdmq.cli_output import Output
from holdmq.errors import ArgumentError
from holdmq_bridge.auth.store import Store, Target

OUTPUT = "holdmq.output"

pass_store = click.make_pass_decorator(Store)


def output() -> Output:
    """The output of a command."""
    found: Output = click.get_current_context().meta[OUTPUT]
    return found


class Whose(click.ParamType[Target]):
    """An argument that names the owner of rules: role:NAME, user:NAME, everybody or anonymous."""

    name = "whose"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        """Converts the argument, or fails with a usage error."""
        if isinstance(value, Target):
            return value
        try:
            return Target.parse(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)
