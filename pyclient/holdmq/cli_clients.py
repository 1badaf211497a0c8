"""The commands `holdmq sessions`, `clients`, `top`, `kick`, `purge` and `bridges`: clients and their traffic."""

import dataclasses
import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

import click

from holdmq._sync.client import HoldMQ
from holdmq.cli_change import changing
from holdmq.cli_output import output
from holdmq.errors import NotAnsweredError
from holdmq.replies import ClientRow, SessionRow

SESSION = ("client_id", "connected", "messages", "owner")
CLIENT = tuple(field.name for field in dataclasses.fields(ClientRow))
BRIDGE = (
    *("name", "clients", "publishes_received_rate", "messages_sent_rate", "acknowledge_p50_ms", "acknowledge_p99_ms"),
    *("started", "version"),
)
TOP = ("client_id", "received_rate", "sent_rate", "user", "address", "bridge")
COUNT = click.IntRange(1)
DEFAULT_TOP = 10


@click.command()
@click.argument("search", default="*")
@click.option("--connected", is_flag=True, help="Show only sessions whose client is connected.")
@click.option("--sort", type=click.Choice(["client", "messages"]), default="client", show_default=True)
@click.option("--count", type=COUNT, help="Maximum number of sessions shown.")
@click.pass_obj
def sessions(hold: HoldMQ, search: str, connected: bool, sort: str, count: int | None) -> None:
    """List the sessions whose client id matches SEARCH (a glob). --sort messages: longest queues first."""
    found: Iterable[SessionRow] = (
        row for row in hold.sessions(connected=connected) if fnmatchcase(row.client_id, search)
    )
    if sort == "messages":
        found = longest(found, count)
    output().rows(SESSION, ([getattr(row, name) for name in SESSION] for row in islice(found, count)))


@click.command()
@click.argument("search", default="*")
@click.option("--bridge", default="*", help="Show only clients of bridges whose name matches this glob.")
@click.option("--count", type=COUNT, help="Maximum number of clients shown.")
@click.pass_obj
def clients(hold: HoldMQ, search: str, bridge: str, count: int | None) -> None:
    """List the connected clients whose id matches SEARCH (a glob), with their bridges and their traffic."""
    found = with_missing_reported(hold.clients(search=search, bridge=bridge))
    output().rows(CLIENT, ([getattr(row, name) for name in CLIENT] for row in islice(found, count)))


@click.command()
@click.option(
    "--count", type=COUNT, default=DEFAULT_TOP, show_default=True, help="How many clients and sessions are shown."
)
@click.pass_obj
def top(hold: HoldMQ, count: int) -> None:
    """Show the clients that publish most messages per second, then the sessions with the longest queues."""
    output().rows(TOP, ([getattr(row, name) for name in TOP] for row in hold.loudest(count)))
    queues = (row for row in hold.sessions() if row.messages)
    output().rows(SESSION, ([getattr(row, name) for name in SESSION] for row in longest(queues, count)))


@click.command()
@click.argument("client_id")
@click.option("--why", default="", help="Reason for the bridge's log, and for an MQTT 5.0 client.")
@click.pass_obj
@changing
def kick(hold: HoldMQ, client_id: str, why: str) -> None:
    """Disconnect the client CLIENT_ID and keep its session. Exit status 1 if it was not connected."""
    if not hold.kick(client_id, why=why):
        require_session(hold, client_id)
        raise click.ClickException(f"the client {client_id!r} is not connected")
    output().value("kicked", client_id)


@click.command()
@click.argument("client_id")
@click.confirmation_option(prompt="Remove all messages of the session's queue?")
@click.pass_obj
@changing
def purge(hold: HoldMQ, client_id: str) -> None:
    """Empty the queue of the session of CLIENT_ID, keep its subscriptions, and print how many messages it had.

    Exit status 1 if there is no session.
    """
    require_session(hold, client_id)
    output().value("messages", hold.session(client_id).purge())


@click.command()
@click.pass_obj
def bridges(hold: HoldMQ) -> None:
    """List the running bridges."""
    rows = hold.bridges()
    output().rows(BRIDGE, ([shown(getattr(row, name)) for name in BRIDGE] for row in rows))


COMMANDS = (sessions, clients, top, kick, purge, bridges)


def require_session(hold: HoldMQ, client_id: str) -> None:
    """Says so if there is nothing of that client: no session, and no queue or subscription of one never opened."""
    info = hold.session(client_id).info()
    if not (info.exists or info.messages or info.subscriptions):
        raise click.ClickException(f"there is no session of {client_id!r}")


def longest(rows: Iterable[SessionRow], count: int | None) -> list[SessionRow]:
    """Those with the longest queues, the longest first."""
    if count is None:
        return sorted(rows, key=lambda row: row.messages, reverse=True)
    return heapq.nlargest(count, rows, key=lambda row: row.messages)


def with_missing_reported(rows: Iterable[ClientRow]) -> Iterator[ClientRow]:
    """The rows; a bridge that does not answer is an error of the command line."""
    try:
        yield from rows
    except NotAnsweredError as error:
        raise click.ClickException(str(error)) from error


def shown(value: Any) -> Any:
    """Times without fractions."""
    return value.replace(microsecond=0) if isinstance(value, datetime) else value
