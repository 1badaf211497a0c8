"""`holdmq-bridge auth`: edits users, roles and rules, and shows which rule decides.

A thin layer over Store: it reads words, calls one method, prints the result; for a person, or with `--json` one JSON
document a line. Exit status 0: done (or: allowed); 1: it does not fit what is stored, the server refused or could not
be reached (or: denied); 2: the words were wrong. Passwords come from a prompt or standard input, never from the words.
"""

import json
import sys
from pathlib import Path

import click
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdmq.cli_output import Group, Output
from holdmq.core import InvalidTopicError
from holdmq.password import with_password
from holdmq_bridge.admin.common import OUTPUT, output, pass_store
from holdmq_bridge.admin.rules import block_group, role_group, rule_group
from holdmq_bridge.admin.users import user_group
from holdmq_bridge.auth import transfer
from holdmq_bridge.auth.records import Policy, User
from holdmq_bridge.auth.rules import CompiledRules, Decision, compile_rules, without_rules
from holdmq_bridge.auth.store import Store
from holdmq_bridge.process.settings import Settings

_TIMEOUT_S = 30.0
_NOBODY = "-"


@click.group("auth", cls=Group)
@click.option(
    "--redis",
    "url",
    envvar="HOLDMQ_BRIDGE_REDIS",
    default=None,
    help="URL of the server that the bridges use: redis://, rediss:// or unix://  [environment: HOLDMQ_BRIDGE_REDIS]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")
@click.pass_context
def auth(context: click.Context, url: str | None, as_json: bool) -> None:
    """Edit who may connect, publish and subscribe. Every bridge follows a change at once."""
    outer = context.parent.params.get("redis") if context.parent is not None else None
    try:
        client = redis.Redis.from_url(
            with_password(url or outer or Settings.model_fields["redis"].default),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )
    except ValueError as error:
        raise click.UsageError(f"--redis: {error}") from error
    context.call_on_close(client.close)
    context.obj = Store(client)
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
    refused = _refused(policy, known, client_id)
    if refused:
        decision, why = Decision(False, None), refused
    else:
        rules = _rules_of(policy, known, client_id)
        try:
            decide = rules.decide_publish if action == "publish" else rules.decide_subscribe
            decision = decide(topic.encode("utf-8", "surrogateescape"))
        except InvalidTopicError as error:
            raise click.UsageError(f"{topic!r}: {error}") from error
        why = _explained(policy, known, decision)
    output().fields({"allowed": decision.allowed, "because": why})
    if not decision.allowed:
        raise SystemExit(1)


def _refused(policy: Policy, user: User | None, client_id: str) -> str:
    """Why the client could not connect at all; empty if it could."""
    if policy.blocks(client_id.encode()):
        return "the client id is blocked"
    if user is not None and not user.enabled:
        return "the user is disabled"
    if user is not None and not user.may_be_client(client_id.encode()):
        return f"the user may not use this client id, only {' '.join(user.clients)}"
    return ""


def _rules_of(policy: Policy, user: User | None, client_id: str) -> CompiledRules:
    if policy.is_empty:
        return without_rules()
    if user is not None and user.superuser:
        return CompiledRules((), default=True)
    lists = policy.rule_lists(user, anonymous=user is None)
    return compile_rules(lists, client_id.encode(), None if user is None else user.name, default=False)


def _explained(policy: Policy, user: User | None, decision: Decision) -> str:
    if decision.entry is not None:
        entry = decision.entry
        plain = entry.topic_filter.decode("utf-8", "backslashreplace")
        became = "" if plain == entry.rule.topic_filter else f" (here: {plain})"
        return f"rule {entry.number} of {entry.source}: {entry.rule}{became}"
    if policy.is_empty:
        return "there are neither users nor rules"
    return "the user is a superuser" if user is not None and user.superuser else "no rule applies"


@auth.command("export")
@pass_store
def export_command(store: Store) -> None:
    """Print users (with password hashes), roles and blocked clients as one JSON document."""
    click.echo(json.dumps(transfer.export(store), ensure_ascii=False, indent=1))


@auth.command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--replace", is_flag=True, help="Also remove what the document does not name.")
@pass_store
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
@pass_store
def announce(store: Store) -> None:
    """Make every bridge read users and rules again, after their keys were edited by other programs."""
    store.announce()
