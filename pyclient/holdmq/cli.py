"""The command `holdmq`: shows what is stored, publishes, drops.

A thin layer over the synchronous client. Each command parses its arguments, calls one method and prints the result as
text, or with `--json` as one JSON document per line. Exit status 0: done; 1: the server refused or could not be
reached; 2: the command line was wrong.
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

import click

from holdmq._sync.client import HoldMQ
from holdmq._sync.session import Session
from holdmq.cli_change import PRIMARY, changing, primary
from holdmq.cli_clients import COMMANDS
from holdmq.cli_dry_run import dry_run
from holdmq.cli_history import history
from holdmq.cli_output import Group, Output, Seconds, content, limited, output
from holdmq.errors import ArgumentError
from holdmq.health import UnhealthyError, check_bridge, check_server
from holdmq.password import with_password
from holdmq.replies import Entry
from holdmq.sentinel_url import SENTINEL, SentinelUrl
from holdmq.server import ServerNotFoundError, find_module

DEFAULT_URL = "redis://127.0.0.1:6379"
ENTRY_POINTS = "holdmq.commands"
"""Other packages add commands by entry points of this group, each the name of a click command or group; they find the
client with `click.pass_obj` and print with `holdmq.cli_output.output`."""


ACCEPTED = "accepted are redis://, rediss://, unix:// and sentinel://host:port,.../service"
MAX_WAIT_S = 86_400
AGAIN_S = 0.5  # between two checks of `health --wait`

LOCAL = frozenset({"module-path", "health"})
"""Commands that need no server, or say themselves that there is none."""


class Commands(Group):
    """The commands of this package, and those that other packages declare as entry points of the group `ENTRY_POINTS`.

    They are loaded when they are asked for: what another package needs is loaded only then.  `--json` may be anywhere.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words, `--json` first."""
        end = args.index("--") if "--" in args else len(args)
        if "--json" in args[:end]:
            args = ["--json", *(word for word in args[:end] if word != "--json"), *args[end:]]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return sorted({*super().list_commands(ctx), *(point.name for point in entry_points(group=ENTRY_POINTS))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; one of another package that cannot be loaded says why when it is run."""
        own = super().get_command(ctx, cmd_name)
        points = () if own is not None else tuple(entry_points(group=ENTRY_POINTS, name=cmd_name))
        if not points:
            return own
        try:
            found: object = points[0].load()
        except ImportError as error:
            return unloadable(cmd_name, error)
        if not isinstance(found, click.Command):
            return unloadable(cmd_name, TypeError(f"{points[0].value} is a {type(found).__name__}, no click command"))
        return found


def unloadable(name: str, error: Exception) -> click.Command:
    """Stands in for a command that cannot be loaded."""

    def refuse() -> None:
        raise click.ClickException(f"the command {name!r} cannot be loaded: {error}")

    return click.Command(
        name,
        callback=refuse,
        help=f"Cannot be loaded: {error}",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


def client_of(context: click.Context, url: str, *, cluster: bool) -> HoldMQ[bytes]:
    """The client of the server that the URL names, or of the primary of a service of Sentinels."""
    try:
        full = with_password(url)
        if not full.startswith(SENTINEL):
            return HoldMQ.from_url(full, cluster=cluster)
        if cluster:
            raise click.UsageError("a cluster has no Sentinels: give the URL of one of its nodes with --cluster")
        parsed = SentinelUrl.parse(full)
        client = parsed.client()
    except ValueError as error:
        raise click.UsageError(f"--url: {error}; {ACCEPTED}") from error
    context.meta[PRIMARY] = parsed.primary()
    context.call_on_close(client.close)
    return HoldMQ(client)


@click.group(cls=Commands)
@click.option(
    "--url",
    envvar="HOLDMQ_URL",
    default=DEFAULT_URL,
    show_default=True,
    help="URL of the server: redis://, rediss://, unix://, or sentinel://host:port,.../service.",
)
@click.option("-c", "--cluster", is_flag=True, help="The server is a node of a cluster: use the whole cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")
@click.version_option(package_name="holdmq")
@click.pass_context
def main(context: click.Context, url: str, cluster: bool, as_json: bool) -> None:
    """Inspect and use a server with the HoldMQ module."""
    hold = client_of(context, url, cluster=cluster)
    if context.invoked_subcommand in main.commands and context.invoked_subcommand not in LOCAL:
        context.obj = context.with_resource(hold)
    else:  # a plug-in connects itself: it may have the password from elsewhere
        context.obj = hold
        context.call_on_close(hold.close)
    context.meta["holdmq.output"] = Output(as_json)


main.add_command(history)
for command in (*COMMANDS, dry_run):
    main.add_command(command)


@main.command("module-path")
def module_path() -> None:
    """Print the path of the module, for `loadmodule` in the server's configuration file."""
    try:
        output().value("path", str(find_module()))
    except ServerNotFoundError as error:
        raise click.ClickException(str(error)) from error


@main.command("health")
@click.option(
    "--bridge", metavar="URL", help="Ask the bridge at this URL of its metrics port, such as http://127.0.0.1:9883."
)
@click.option(
    "--wait",
    "wait_s",
    default=0.0,
    type=click.FloatRange(0, MAX_WAIT_S),
    metavar="SECONDS",
    help="Check again until a message could be stored, for this many seconds.",
)
@click.pass_obj
def health(hold: HoldMQ, bridge: str | None, wait_s: float) -> None:
    """Check whether a message could be stored now. Exit status 1 if not, with the reason."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            check_bridge(bridge) if bridge is not None else check_server(hold, primary())
        except UnhealthyError as error:
            if time.monotonic() >= deadline:
                raise click.ClickException(str(error)) from error
            time.sleep(min(AGAIN_S, max(0.0, deadline - time.monotonic())))
        else:
            break
    output().value("health", "ok")


@main.command()
@click.pass_obj
def info(hold: HoldMQ) -> None:
    """Show the module's state (INFO holdmq)."""
    output().fields(hold.info())


@main.command()
@click.pass_obj
def check(hold: HoldMQ) -> None:
    """Compare the indexes in memory with the keys. Exit status 1 if they differ."""
    differences = hold.check()
    output().rows(["difference"], [[line] for line in differences])
    if differences:
        raise SystemExit(1)


@main.group()
def channel() -> None:
    """Publish to channels, and show the messages that they keep."""


@channel.command("publish")
@click.argument("name")
@click.argument("message")
@click.pass_obj
@changing
def channel_publish(hold: HoldMQ, name: str, message: str) -> None:
    """Publish MESSAGE to the channel NAME, and print the number of receivers. MESSAGE `-`: standard input."""
    output().value("receivers", hold.channel(name).publish(content(message)))


@channel.command("last")
@click.argument("name")
@click.pass_obj
def channel_last(hold: HoldMQ, name: str) -> None:
    """Show the most recent message that the channel NAME keeps. Exit status 1 if there is none."""
    last = hold.channel(name).last()
    if last is None:
        raise click.ClickException(f"the channel {name!r} keeps no message")
    output().value("message", last)


@channel.command("backlog")
@click.argument("name")
@click.pass_obj
def channel_backlog(hold: HoldMQ, name: str) -> None:
    """Show all messages that the channel NAME keeps, oldest first."""
    output().rows(["message"], ([message] for message in hold.channel(name).backlog(page=1000)))


@channel.command("policy")
@click.argument("name")
@click.pass_obj
def channel_policy(hold: HoldMQ, name: str) -> None:
    """Show the rule that applies to the channel NAME. Exit status 1 if none does."""
    policy = hold.channel(name).policy()
    if policy is None:
        raise click.ClickException(f"no rule matches the channel {name!r}: nothing is kept")
    output().fields(dataclasses.asdict(policy))


@channel.command("subscribe")
@click.argument("names", nargs=-1, required=True)
@click.option("--pattern", is_flag=True, help="Treat NAMES as patterns.")
@click.option("--seconds", type=Seconds(), help="End after this time without a message, such as 90 or 15m.")
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@click.pass_obj
def channel_subscribe(
    hold: HoldMQ, names: tuple[str, ...], pattern: bool, seconds: float | None, count: int | None
) -> None:
    """Subscribe to channels, and show their messages until Ctrl-C. Messages that were kept come first."""
    subscribe = hold.psubscribe if pattern else hold.subscribe
    with subscribe(*names, timeout=seconds) as messages:
        output().rows(["channel", "message"], ([m.channel, m.data] for m in limited(messages, count)))


@main.group()
def session() -> None:
    """Show and remove sessions of MQTT clients."""


@session.command("info")
@click.argument("client_id")
@click.pass_obj
def session_info(hold: HoldMQ, client_id: str) -> None:
    """Show the state and the subscriptions of the session of CLIENT_ID."""
    one = hold.session(client_id)
    filters = {name: f"qos {options.qos}" for name, options in one.subscriptions().items()}
    output().fields({**dataclasses.asdict(one.info()), **{f"filter {name}": text for name, text in filters.items()}})


@session.command("fetch")
@click.argument("client_id")
@click.option("--after", default=0, help="Show only messages after this serial.")
@click.option("--count", type=click.IntRange(1), help="Maximum number of messages shown.")
@click.pass_obj
def session_fetch(hold: HoldMQ, client_id: str, after: int, count: int | None) -> None:
    """Show the queue of the session of CLIENT_ID. Removes nothing."""
    output().rows(["serial", "packet_id", "state", "topic", "value"], queue(hold.session(client_id), after, count))


@session.command("drop")
@click.argument("client_id")
@click.confirmation_option(prompt="Remove the session, its queue and its subscriptions?")
@click.pass_obj
@changing
def session_drop(hold: HoldMQ, client_id: str) -> None:
    """Remove the session of CLIENT_ID, and print how many messages its queue had."""
    output().value("messages", hold.session(client_id).drop())


@main.group()
def topic() -> None:
    """Publish to MQTT topics, and show retained messages."""


@topic.command("publish")
@click.argument("name")
@click.argument("payload")
@click.option("--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.option("--retain", is_flag=True, help="Keep PAYLOAD as the topic's retained message.")
@click.option(
    "--ttl",
    type=Seconds(),
    help="How long the message lives, such as 90 or 24h. 0: it reaches only clients that are connected.",
)
@click.pass_obj
@changing
def topic_publish(hold: HoldMQ, name: str, payload: str, qos: int, retain: bool, ttl: float | None) -> None:
    """Publish PAYLOAD to the topic NAME, and print the number of sessions reached. PAYLOAD `-`: standard input."""
    output().value("sessions", hold.topics.publish(name, content(payload), qos=qos, retain=retain, ttl=ttl))


@topic.command("retained")
@click.argument("topic_filter")
@click.option("--count", type=click.IntRange(1), help="Maximum number of topics shown.")
@click.pass_obj
def topic_retained(hold: HoldMQ, topic_filter: str, count: int | None) -> None:
    """Show the retained messages of the topics that TOPIC_FILTER matches."""
    found = ((name, hold.topics.retained_message(name)) for name in hold.topics.retained(topic_filter, count=count))
    output().rows(["topic", "payload"], ([name, message.payload] for name, message in found if message))


def queue(one: Session, after: int, count: int | None) -> Iterable[Sequence[Any]]:
    """The queue of a session as rows, with the topic where the value is a record."""
    for number, entry in enumerate(one.entries(after=after), 1):
        yield row_of(entry)
        if number == count:
            return


def row_of(entry: Entry) -> Sequence[Any]:
    """An entry of a queue as a row."""
    head = (entry.serial, entry.packet_id, entry.state.name.lower())
    try:
        message = entry.message
    except ArgumentError:  # what others have stored there is shown as it is
        return (*head, None, entry.value)
    return (*head, None, b"") if message is None else (*head, message.topic, message.payload)
