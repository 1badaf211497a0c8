"""`holdmq-bridge link`: links to other brokers, configured by a file or, for a single link, by options.

Each field of ProcessSettings and ConnectionSettings is an option of the same name.  An option overrides the file, and
the file overrides the environment.

Exit status 0: stopped by a signal; 1: an address or file cannot be used; 2: invalid options or file; 3: another process
has taken over a link.
"""

import sys
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from holdmq_bridge.base.options import option_type
from holdmq_bridge.uplink.run import main
from holdmq_bridge.uplink.settings import ConnectionSettings, ProcessSettings, read_file

_TOPICS = "topics"
_PROCESS = [name for name in ProcessSettings.model_fields if name != "connection"]


def _option(name: str, field: FieldInfo, *, environment: bool = False) -> click.Option:
    shown = [] if field.default in (PydanticUndefined, None, "") else [f"default: {field.default}"]
    shown += [f"environment: HOLDMQ_LINK_{name.upper()}"] if environment else []
    help_text = f"{field.description}  [{'; '.join(shown)}]" if shown else str(field.description)
    if name == _TOPICS:
        return click.Option(["--topic", _TOPICS], multiple=True, help=help_text)
    return click.Option(
        [f"--{name.replace('_', '-')}", name], type=option_type(field.annotation), default=None, help=help_text
    )


def _params() -> list[click.Parameter]:
    options = [_option(name, ProcessSettings.model_fields[name], environment=True) for name in _PROCESS]
    options += [
        _option(name, field)
        for name, field in ConnectionSettings.model_fields.items()
        if field.annotation not in (SecretStr, SecretStr | None)  # other users can see the options of a process
    ]
    config = click.Option(
        ["--config", "config"], type=click.Path(dir_okay=False, path_type=Path), help="TOML file with the links."
    )
    return [config, *options]


def _merged(context: click.Context, config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Options and file in one document."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    document: dict[str, Any] = {} if config is None else read_file(config)
    outer = context.parent.params.get("redis") if context.parent is not None else None
    if outer is not None and "redis" not in document:
        document["redis"] = outer
    document |= {name: given.pop(name) for name in _PROCESS if name in given}
    if given and config is not None:
        raise click.UsageError(
            f"--{next(iter(given)).replace('_', '-')} and --config were both given; expected one of them"
        )
    if given:
        document["connection"] = [given]
    return document


@click.pass_context
def _link(context: click.Context, /, config: Path | None, **options: Any) -> None:
    try:
        settings = ProcessSettings(**_merged(context, config, options))
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            click.echo(f"holdmq_bridge link: {where}: {problem['msg']}", err=True)
        sys.exit(2)
    except ValueError as error:
        click.echo(f"holdmq_bridge link: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"holdmq_bridge link: {error}", err=True)
        sys.exit(1)
    try:
        sys.exit(main(settings))
    except OSError as error:
        click.echo(f"holdmq_bridge link: {error}", err=True)
        sys.exit(1)


link = click.Command(
    "link",
    callback=_link,
    params=_params(),
    help="Link HoldMQ to other MQTT brokers, in one direction or both. Nothing is lost while either side is away.",
)
