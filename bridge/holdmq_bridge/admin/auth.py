"""`holdmq-bridge auth`: edits users, roles and rules, and shows which rule decides.

A thin layer over Store. Each command parses its arguments, calls one method and prints the result as text, or with
`--json` as one JSON document per line. Exit status 0: done (or: allowed); 1: the change does not fit what is stored, or
the server refused or could not be reached (or: denied); 2: the command line was wrong. Passwords come from a prompt or
standard input, never from the command line.
"""

import json
import sys
from pathlib import Path

import click

from holdmq.cli_output import Group, Output
from holdmq.core import InvalidTopicError
from holdmq_bridge.admin.common import OUTPUT, Opening, change_store, output, pass_store
from holdmq_bridge.admin.rules import block_group, role_group, rule_group
from holdmq_bridge.admin.servers import client_of
from holdmq_bridge.admin.users import user_group
from holdmq_bridge.auth import transfer
from holdmq_bridge.auth.explain import explain
from holdmq_bridge.auth.store import Store
from holdmq_bridge.process.settings import Settings

_NOBODY = "-"


@click.group("auth", cls=Group)
@click.option(
    "--redis",
    "url",
    envvar="HOLDMQ_BRIDGE_REDIS",
    default=None,
    help="URL of the server that the bridges use, or of any node of the cluster: redis://, rediss://, unix:// or "
    "sentinel://  "
    "[environment: HOLDMQ_BRIDGE_REDIS]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")
@click.pass_context
def auth(context: click.Context, url: str | None, as_json: bool) -> None:
    """Edit who may connect, publish and subscribe. Every bridge follows a change at once."""
    outer = context.parent.params.get("redis") if context.parent is not None else None
    try:
        client, primary = client_of(url or outer or Settings.model_fields["redis"].default)
    except ValueError as error:
        raise click.UsageError(f"--redis: {error}") from error
    context.call_on_close(client.close)
    context.obj = Opening(client, primary)
    context.meta[OUTPUT] = Output(as_json)


for group in (user_group, role_group, rule_group, block_group):
    auth.add_command(group)


@auth.command("check")
@click.argument("client_id")
@click.argument("user")
@click.argument("action", type=click.Choice(["publish", "subscribe"]))
@click.argument("topic")
@pass_store
def check(store: Store, client_id: str, user: str, action: str, topic: str) -> None:
    """Show whether CLIENT_ID, logged in as USER, may do this, and which rule decides. USER `-`: an anonymous client.

    Exit status 0: allowed, 1: denied.
    """
    policy = store.policy()
    known = None if user == _NOBODY else store.user(user)
    try:
        found = explain(policy, known, client_id, action, topic)
    except InvalidTopicError as error:
        raise click.UsageError(f"{topic!r}: {error}") from error
    output().fields({"allowed": found.allowed, "because": found.because})
    if not found.allowed:
        raise SystemExit(1)


@auth.command("export")
@pass_store
def export_command(store: Store) -> None:
    """Print users (with password hashes), roles and blocked clients as one JSON document."""
    click.echo(json.dumps(transfer.export(store), ensure_ascii=False, indent=1))


@auth.command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--replace", is_flag=True, help="Also remove what the document does not name.")
@change_store
def import_command(store: Store, file: str, replace: bool) -> None:
    """Store the users, roles and blocked clients of a document made by `export`. FILE `-`: standard input.

    A document with a mistake changes nothing.
    """
    if file == "-":
        text = sys.stdin.buffer.read(transfer.MAX_DOCUMENT_BYTES + 1)
    else:
        with Path(file).open("rb") as opened:
            text = opened.read(transfer.MAX_DOCUMENT_BYTES + 1)
    document = transfer.parse(text)
    transfer.load(store, document, replace_all=replace)
    output().fields({"users": len(document.users), "roles": len(document.roles), "blocked": len(document.blocked)})


@auth.command("announce")
@change_store
def announce(store: Store) -> None:
    """Make every bridge read users and rules again, after their keys were edited by other programs."""
    store.announce()
