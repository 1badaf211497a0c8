"""`python -m holdmq_bridge`: the command line, generated from the table of settings.

Each field of Settings is an option of the same name; what is not given comes from the environment
(HOLDMQ_BRIDGE_<NAME>), else from the table.
"""

import sys
from typing import Any, get_args

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from holdmq_bridge.serve import main
from holdmq_bridge.settings import Settings


def _option(name: str, field: FieldInfo) -> click.Option:
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind in (int, float, str)]
    return click.Option(
        [f"--{name.replace('_', '-')}", name],
        type=kinds[0] if kinds else str,
        default=None,
        help=f"{field.description}  [default: {field.default}; environment: HOLDMQ_BRIDGE_{name.upper()}]",
    )


def _run(**given: Any) -> None:
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            click.echo(f"holdmq_bridge: {where}: {problem['msg']} (given: {problem['input']!r})", err=True)
        sys.exit(2)
    try:
        main(settings)
    except OSError as error:
        click.echo(f"holdmq_bridge: cannot listen on {settings.host}:{settings.port}: {error}", err=True)
        sys.exit(1)


command = click.Command(
    "holdmq_bridge",
    callback=_run,
    params=[_option(name, field) for name, field in Settings.model_fields.items()],
    help="MQTT 3.1.1 front end of HoldMQ: clients on one side, a Redis or Valkey server with the module on the other.",
)

if __name__ == "__main__":
    command(prog_name="holdmq_bridge")
