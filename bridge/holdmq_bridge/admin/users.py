"""`holdmq-bridge auth user`: adds, changes, shows and removes users.

Passwords come from a prompt or standard input, never from the command line, which other users can see.
"""

import dataclasses
import sys
from typing import Any

import click

from holdmq_bridge.admin.common import change_store, output, pass_store
from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import OVERFLOWS, User
from holdmq_bridge.auth.store import Store, StoreError
from holdmq_bridge.base.quota import MOST


@click.group("user")
def user_group() -> None:
    """Users log in with a password or with a client certificate."""


@user_group.command("add")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="Role of the user. May be repeated; the rules of the roles apply in this order.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    help="Glob of client ids that the user may use. May be repeated. Without it, any client id.",
)
@click.option("--superuser", is_flag=True, help="Allow the user everything.")
@click.option("--disabled", is_flag=True, help="Do not let the user connect yet.")
@click.option("--no-password", is_flag=True, help="Let the user connect by certificate only.")
@change_store
def user_add(
    store: Store,
    name: str,
    *,
    roles: tuple[str, ...],
    clients: tuple[str, ...],
    superuser: bool,
    disabled: bool,
    no_password: bool,
) -> None:
    """Add the user NAME. The password is asked for, or read from the first line of standard input."""
    user = User(name, enabled=not disabled, superuser=superuser, roles=roles, clients=clients).check()
    store.add_user(user if no_password else dataclasses.replace(user, password=_asked_password()))
    if not superuser and not user.roles and not any(store.policy().roles.values()):
        click.echo(f"No rule allows {name} anything yet: see `rule add`.", err=True)


@user_group.command("passwd")
@click.argument("name")
@click.option("--no-password", is_flag=True, help="Remove the password.")
@change_store
def user_passwd(store: Store, name: str, no_password: bool) -> None:
    """Give the user NAME a new password. Clients connected with the former one are disconnected."""
    store.user(name)
    password = "" if no_password else _asked_password()
    store.change_user(name, lambda user: dataclasses.replace(user, password=password))


@user_group.command("delete")
@click.argument("name")
@change_store
def user_delete(store: Store, name: str) -> None:
    """Remove the user NAME. Its clients are disconnected."""
    store.delete_user(name)


@user_group.command("enable")
@click.argument("name")
@change_store
def user_enable(store: Store, name: str) -> None:
    """Let the user NAME connect."""
    store.change_user(name, lambda user: dataclasses.replace(user, enabled=True))


@user_group.command("disable")
@click.argument("name")
@change_store
def user_disable(store: Store, name: str) -> None:
    """Forbid the user NAME to connect. Its clients are disconnected."""
    store.change_user(name, lambda user: dataclasses.replace(user, enabled=False))


@user_group.command("grant")
@click.argument("name")
@click.argument("role")
@change_store
def user_grant(store: Store, name: str, role: str) -> None:
    """Give the user NAME a role, after the roles that it has."""

    def grant(user: User) -> User:
        return user if role in user.roles else dataclasses.replace(user, roles=(*user.roles, role))

    store.change_user(name, grant)


@user_group.command("revoke")
@click.argument("name")
@click.argument("role")
@change_store
def user_revoke(store: Store, name: str, role: str) -> None:
    """Take a role from the user NAME."""

    def revoke(user: User) -> User:
        if role not in user.roles:
            raise StoreError(f"user {name!r} has no role {role!r}")
        return dataclasses.replace(user, roles=tuple(one for one in user.roles if one != role))

    store.change_user(name, revoke)


@user_group.command("clients")
@click.argument("name")
@click.argument("patterns", nargs=-1)
@change_store
def user_clients(store: Store, name: str, patterns: tuple[str, ...]) -> None:
    """Restrict the user NAME to client ids that match one of PATTERNS (globs). Without PATTERNS, allow all."""
    store.change_user(name, lambda user: dataclasses.replace(user, clients=patterns))


@user_group.command("superuser")
@click.argument("name")
@click.argument("value", type=click.BOOL)
@change_store
def user_superuser(store: Store, name: str, value: bool) -> None:
    """Allow the user NAME everything (yes), or only what rules allow (no)."""
    store.change_user(name, lambda user: dataclasses.replace(user, superuser=value))


@user_group.command("session-kind")
@click.argument("name")
@click.argument("kind", type=click.Choice(["application", "device", "any"]))
@change_store
def user_session_kind(store: Store, name: str, kind: str) -> None:
    """Set the kind of the sessions of the user NAME, from their next connect on. any: as each client asks."""
    store.change_user(name, lambda user: dataclasses.replace(user, session_kind="" if kind == "any" else kind))


@user_group.command("overflow")
@click.argument("name")
@click.argument("policy", type=click.Choice([*filter(None, OVERFLOWS), "default"]))
@change_store
def user_overflow(store: Store, name: str, policy: str) -> None:
    """Set what happens to messages for full queues of the user NAME, from the next connect of each client on.

    drop-oldest and drop-newest drop a message. refuse refuses the publish (reason code 0x97). wait delays its
    acknowledgement. default applies the server's setting holdmq.session-overflow.
    """
    store.change_user(name, lambda user: dataclasses.replace(user, overflow="" if policy == "default" else policy))


class _Bound(click.ParamType[str]):
    name = "number|default"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text != "default" and not (text.isascii() and text.isdigit() and int(text[:20]) <= MOST):
            self.fail(f"{text!r}; expected a whole number from 0 to {MOST}, or default", param, ctx)
        return text


@user_group.command("quota")
@click.argument("name")
@click.option("--sessions", type=_Bound(), help="Maximum number of sessions, connected or not.")
@click.option("--queue-bytes", type=_Bound(), help="Maximum bytes of messages in the queues of all its sessions.")
@click.option("--retained", type=_Bound(), help="Maximum number of retained messages.")
@change_store
def user_quota(store: Store, name: str, sessions: str | None, queue_bytes: str | None, retained: str | None) -> None:
    """Limit what the user NAME may keep in the server, from the next connect of each client on.

    0 means no limit. default applies the server's settings (holdmq.max-sessions-per-user and the like). Limits that are
    not named do not change. Nothing that is stored is removed: a further session or retained message is refused
    (reason code 0x97), and a further message meets the overflow policy.
    """
    bounds = {"sessions": sessions, "queue_bytes": queue_bytes, "retained": retained}
    given = {key: None if text == "default" else int(text) for key, text in bounds.items() if text is not None}
    if not given:
        raise click.UsageError("no bound; expected --sessions, --queue-bytes or --retained")
    store.change_user(name, lambda user: dataclasses.replace(user, quota=dataclasses.replace(user.quota, **given)))


@user_group.command("show")
@click.argument("name")
@pass_store
def user_show(store: Store, name: str) -> None:
    """Show the user NAME."""
    user = store.user(name)
    output().fields(
        _shown_user(user)
        | {
            "rules": len(user.rules),
            "session_kind": user.session_kind,
            "overflow": user.overflow,
            "quota": str(user.quota),
        }
    )


@user_group.command("list")
@pass_store
def user_list(store: Store) -> None:
    """List all users."""
    names = ("name", "password", "enabled", "superuser", "roles", "clients")
    output().rows(names, ([_shown_user(user)[name] for name in names] for user in store.users()))


def _shown_user(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password": bool(user.password),
        "enabled": user.enabled,
        "superuser": user.superuser,
        "roles": " ".join(user.roles),
        "clients": " ".join(user.clients),
    }


def _asked_password() -> str:
    """The hash of a password that is typed twice, or of the first line of standard input if that is not a terminal."""
    if sys.stdin.isatty():
        return hash_password(click.prompt("Password", hide_input=True, confirmation_prompt=True).encode())
    line = sys.stdin.buffer.readline()
    return hash_password(line.removesuffix(b"\n").removesuffix(b"\r"))
