"""`python -m holdmq_bridge`: the command line, generated from the table of settings.

Each field of Settings is an option of the same name.  An option that is not given comes from the environment
(HOLDMQ_BRIDGE_<NAME>), or else from the table.
"""

import sys
from importlib import import_module
from typing import Any

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from holdmq_bridge.auth import AuthSettings
from holdmq_bridge.base.options import option_type
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.serve import TracingError, import_tracing, main
from holdmq_bridge.workers import run_workers


def _option(name: str, field: FieldInfo) -> click.Option:
    return click.Option(
        [f"--{name.replace('_', '-')}", name],
        type=option_type(field.annotation),
        default=None,
        help=f"{field.description}  [{_default(field)}environment: HOLDMQ_BRIDGE_{name.upper()}]",
    )


def _default(field: FieldInfo) -> str:
    return "" if field.default is None else f"default: {field.default}; "


def _fields() -> dict[str, FieldInfo]:
    """The fields in the order of the documentation: settings of logins come last."""
    own = {name: field for name, field in Settings.model_fields.items() if name not in AuthSettings.model_fields}
    return own | Settings.model_fields


def _wrong(problem: ErrorDetails) -> str:
    """The error of a setting, or of several settings together."""
    text = problem["msg"].removeprefix("Value error, ")
    if problem["loc"]:
        return f"{'.'.join(str(part) for part in problem['loc'])}: {text} (given: {problem['input']!r})"
    named = [f"{name}={value!r}" for name, value in problem["input"].items() if name in text]
    return f"{text} (given: {', '.join(named)})" if named else text


@click.pass_context
def _run(context: click.Context, /, **given: Any) -> None:
    if context.invoked_subcommand is not None:
        return
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            click.echo(f"holdmq_bridge: {_wrong(problem)}", err=True)
        sys.exit(2)
    try:
        import_tracing(settings)
        if settings.workers > 1:
            run_workers(settings)
        else:
            main(settings)
    except TracingError as error:
        click.echo(f"holdmq_bridge: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"holdmq_bridge: {error}", err=True)
        sys.exit(1)


class _Group(click.Group):
    """Loads subcommands lazily: a bridge starts a seventh faster without them."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """The names of the subcommands."""
        return sorted(_SUBCOMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """The subcommand of this name, or None."""
        if name not in _SUBCOMMANDS:
            return None
        found: click.Command = getattr(import_module(_SUBCOMMANDS[name]), name)
        return found


_SUBCOMMANDS = {
    "auth": "holdmq_bridge.admin.auth",
    "drain": "holdmq_bridge.admin.drain",
    "link": "holdmq_bridge.uplink.cli",
}

command = _Group(
    "holdmq_bridge",
    callback=_run,
    invoke_without_command=True,
    params=[_option(name, field) for name, field in _fields().items()],
    help="Serve MQTT clients from a Redis or Valkey server with the HoldMQ module.",
)
command = click.version_option(package_name="holdmq", prog_name="holdmq-bridge")(command)

if __name__ == "__main__":
    command(prog_name="holdmq_bridge")
