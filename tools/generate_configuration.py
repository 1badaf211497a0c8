"""Writes the tables of docs/configuration.md from the settings in the code.

    python tools/generate_configuration.py [--check]

The page is written by hand except for the lines between a marker and `<!-- end -->`:

    <!-- generated: bridge host workers -->     settings of the bridge, from `host` to `workers`

Markers: `module`, `bridge FIRST LAST`, `link FIRST LAST`, `process`, `console`, `serve`, `holdmq`.
Every setting is in one table.
The module has no descriptions of its own, so they are here; tests/module/test_page_settings.py compares names, defaults
and ranges with a server.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from holdmq.cli import main as holdmq_command
from holdmq_bridge.process.settings import MOST_PACKET_BYTES, Settings
from holdmq_bridge.run import command as serve_command
from holdmq_bridge.uplink.settings import ConnectionSettings, ProcessSettings
from holdmq_console.settings import ConsoleSettings

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "configuration.md"

HEAD = ("setting", "default", "unit", "accepted", "meaning")
MARKED = re.compile(r"^<!-- generated: (.+?) -->\n(?:.*?)^<!-- end -->\n", re.MULTILINE | re.DOTALL)
PORTS = {"port", "tls_port", "ws_port", "wss_port", "metrics_port"}

# What the types do not say.
ACCEPTED = {
    "host": "an address or a host name",
    "ws_path": "a path that begins with `/`",
    "ws_origins": "origins, `null`, `same-host`, `*`",
    "proxy_networks": "addresses and networks",
    "redis": "a URL",
    "bridge.max_packet_bytes": f"64 to {MOST_PACKET_BYTES}",
    "metrics_host": "an address or a host name",
    "drain_server_reference": "at most 1000 characters",
    "trace_endpoint": "empty, or an HTTP URL",
    "log_level": "`DEBUG`, `INFO`, `WARNING`, `ERROR`",
    "name": "1 to 64 letters, digits, `.`, `_`, `-`",
    "address": "an address, see the meaning",
    "topics": "lines, or tables with `pattern`, `direction`, `qos`, `local_prefix`, `remote_prefix`",
    "client_id": "a client id",
    "username": "text",
    "password": "text",
    "notification_topic": "a topic name",
    "broker_id": "at most 64 printable characters without spaces",
    "allowed_hosts": "host names",
    "trusted_proxies": "addresses and networks",
    "console.admin_role": "the name of a role",
    "console.viewer_role": "the name of a role",
    "console.payload_role": "the name of a role",
    "allow_anonymous": "`true`, `false`, not set",
}
UNITS = {
    "session_hours": "h",
    "live_rate": "messages per second",
    "read_ahead": "commands",
    "max_outstanding": "commands",
    "max_client_outstanding": "commands",
    "max_fetches": "pages",
    "wait_replicas": "replicas",
    "max_subscriptions": "filters",
    "max_filters": "filters",
    "max_inflight": "messages",
    "receive_maximum": "messages",
    "max_ready": "messages",
    "max_topic_alias": "aliases",
    "replay_rate": "messages per second",
    "trace_rate": "traces per second",
    "drain_rate": "clients per second",
    "publish_rate": "messages per second",
    "max_connections": "connections",
    "connection_rate": "CONNECTs per second",
    "connection_rate_per_address": "CONNECTs per second",
    "max_user_properties": "properties",
    "auth_address_failures_per_s": "per second",
    "auth_threads": "threads",
    "auth_max_waiting": "logins",
    "auth_max_lookups": "logins",
    "auth_cached_logins": "passwords",
    "auth_free_failures": "passwords",
    "auth_address_failures": "passwords",
    "auth_max_sources": "users and addresses",
    "workers": "processes",
    "max_pending": "packets",
    "max_hops": "brokers",
    "max_unread_connects": "bytes",
    "max_unanswered_connects": "bytes",
}


class ModuleSetting(NamedTuple):
    """A setting of the module, without its prefix `holdmq.`.

    Attributes:
        range: for a number: what is accepted.
        words: else: what is accepted.
    """

    name: str
    default: str
    unit: str
    meaning: str
    range: tuple[int, int] | None = None
    words: tuple[str, ...] = ()


YES_NO = ("yes", "no")
MOST = 1 << 40
MODULE = (
    ModuleSetting(
        "intercept",
        "yes",
        "",
        "`PUBLISH`, `SPUBLISH` and the subscribing commands of stock clients hold and hand over messages. "
        "`no`: these commands do the same as without the module.",
        words=YES_NO,
    ),
    ModuleSetting(
        "presence",
        "yes",
        "",
        "Publish on a topic and a channel when a session is opened and when its connection ends "
        "([presence](commands/session.md#presence)).",
        words=YES_NO,
    ),
    ModuleSetting(
        "policies",
        "see below",
        "",
        "Which channels hold messages, and for how long. The first rule that matches a channel applies.",
        words=("a policy list", "at most 65536 bytes"),
    ),
    ModuleSetting(
        "drain-timeout",
        "60",
        "s",
        "How long a new subscriber may read nothing while a backlog (`deliver=held`) is handed over to it. "
        "The rest then waits for the next subscriber.",
        range=(1, 86400),
    ),
    ModuleSetting(
        "session-limit",
        "10000",
        "messages",
        "Maximum number of messages in the queue of one session. At the limit `holdmq.session-overflow` applies.",
        range=(1, 65535),
    ),
    ModuleSetting(
        "session-bytes",
        "104857600",
        "bytes",
        "Maximum bytes of messages in the queue of one session. At the limit `holdmq.session-overflow` applies. "
        "0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "session-overflow",
        "drop-oldest",
        "",
        "What happens to a message for a full queue: drop the oldest queued message, drop the new message, refuse the "
        "publish, or delay its acknowledgement ([limits of queues](security.md#limits-of-queues)).",
        words=("drop-oldest", "drop-newest", "refuse", "wait"),
    ),
    ModuleSetting(
        "session-ttl",
        "604800",
        "s",
        "How long a queued message lives, and the keys of a session that was never opened.",
        range=(1, 2147483647),
    ),
    ModuleSetting(
        "max-sessions",
        "0",
        "sessions",
        "Maximum number of sessions of a database, connected or not. "
        "A further session is refused with `QUOTA` (MQTT: CONNACK 0x97). 0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "max-retained",
        "0",
        "messages",
        "Maximum number of retained messages of a database. A message for a new topic is refused with `QUOTA` (MQTT: "
        "PUBACK 0x97). "
        "0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "max-sessions-per-user",
        "0",
        "sessions",
        "Maximum number of sessions of one user in a database, connected or not. "
        "A further session is refused with `QUOTA`. 0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "max-retained-per-user",
        "0",
        "messages",
        "Maximum number of retained messages of one user in a database. A message for a new topic is refused with "
        "`QUOTA`. "
        "0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "max-queue-bytes-per-user",
        "0",
        "bytes",
        "Maximum bytes of messages in the queues of one user in a database. At the limit the overflow policy of the "
        "receiving session applies. 0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "max-queue-bytes",
        "0",
        "bytes",
        "Maximum bytes of messages in all queues of a database, shared out between users as they fill "
        "([limits of users](security.md#limits-of-users)). 0: no limit.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "outbox-bytes",
        str(256 << 10),
        "bytes",
        "Maximum bytes of wills and presence messages in the [outbox](commands/outbox.md) of each slot of a cluster. "
        "It is used only if a bridge or program reads it. 0: none has one, and nodes deliver these messages to their "
        "own sessions only.",
        range=(0, 1 << 30),
    ),
    ModuleSetting(
        "max-route-bytes",
        str(1 << 30),
        "bytes",
        "Maximum bytes that a node of a cluster spends on the routes of all nodes. At the limit `ROUTE.ADD` and "
        "`ROUTE.FEED` are refused with `QUOTA`.",
        range=(0, MOST),
    ),
    ModuleSetting(
        "min-free-disk",
        str(64 << 20),
        "bytes",
        "Free disk below which a server with an append-only file refuses to store messages, with `QUOTA` "
        "([full disk](operations.md#full-disk-full-memory)). 0: it refuses only when the disk is full.",
        range=(0, MOST),
    ),
)


# --- Cells ------------------------------------------------------------------------------------------------------------


def plain(text: str, names: Iterable[str] = ()) -> str:
    """The text as Markdown; names of settings become code."""
    known = "|".join(sorted((name for name in names if "_" in name), key=len, reverse=True))
    parts = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(parts), 2):
        shown = parts[at].replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
        parts[at] = re.sub(rf"\b({known})\b", r"`\1`", shown) if known else shown
    return "".join(parts)


def code(value: object) -> str:
    """The value as it is written in a configuration."""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def amount(value: object, unit: str) -> str:
    """The value, and what large numbers are in larger units."""
    if not isinstance(value, int) or isinstance(value, bool):
        return code(f"{value:g}" if isinstance(value, float) else value)
    if unit == "bytes":
        for factor, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= factor and value % factor == 0:
                return f"{code(value)} ({value // factor} {name})"
    if unit == "s" and value >= 86400 and value % 86400 == 0:
        return f"{code(value)} ({value // 86400} days)"
    return code(value)


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = HEAD) -> Iterator[str]:
    """The lines of a table; columns without any content are left out."""
    rows = list(rows)
    used = [at for at in range(len(head)) if any(row[at] for row in rows)]
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(row[at] for at in used) + " |"


# --- Settings of the module -------------------------------------------------------------------------------------------


def module_rows() -> Iterator[Sequence[str]]:
    """The settings of MODULE."""
    for one in MODULE:
        accepted = ", ".join(word if " " in word else code(word) for word in one.words)
        if one.range is not None:
            accepted = f"{one.range[0]} to {one.range[1]}"
        default = one.default if " " in one.default else amount(_number(one.default), one.unit)
        yield code(f"holdmq.{one.name}"), default, one.unit, accepted, one.meaning


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


# --- Settings of bridge and links ------------------------------------------------------------------------------------


def unit_of(name: str) -> str:
    """By the end of the name, or UNITS."""
    if name in UNITS:
        return UNITS[name]
    if "bytes" in name:
        return "bytes"
    return "s" if name.endswith("_s") else ""


def accepted_by(what: str, name: str, field: FieldInfo) -> str:
    """By the type and the bounds of a field, or ACCEPTED.

    Raises:
        ValueError: a new setting of text, which needs an entry in ACCEPTED.
    """
    given = ACCEPTED.get(f"{what}.{name}") or ACCEPTED.get(name)
    if given is not None:
        return given
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not type(None)]
    choices = _choices(field.annotation)
    if choices:
        return ", ".join(map(code, choices))
    if bool in kinds:
        return "`true`, `false`"
    if Path in kinds:
        return "a path"
    if name in PORTS:
        return f"0 (a free port) to 65535{', -1 (off)' if what == 'bridge' else ''}"
    if str in kinds:
        raise ValueError(f"{name}: say in ACCEPTED what it accepts")
    return bounds(field)


def _choices(annotation: Any) -> Sequence[str]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [choice.value for choice in annotation]
    return ()


def bounds(field: FieldInfo) -> str:
    """What its metadata says of a number.

    Raises:
        ValueError: it is not bounded below.
    """
    given: dict[type, Any] = {type(bound): bound for bound in field.metadata}
    if Gt in given:
        least = given[Gt].gt
        most = f", at most {number(given[Le].le)}" if Le in given else ""
        return f"{least + 1} or more{most}" if field.annotation is int else f"more than {least:g}{most}"
    if Ge not in given:
        raise ValueError(f"{field}: no bound")
    least = number(given[Ge].ge)
    return f"{least} to {number(given[Le].le)}" if Le in given else f"{least} or more"


def number(value: Any) -> str:
    """Without a fraction that is none."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows_of(what: str, fields: Mapping[str, FieldInfo]) -> Iterator[Sequence[str]]:
    """The settings of a model of pydantic."""
    for name, field in fields.items():
        unit = unit_of(name)
        default = getattr(field.default, "value", field.default)
        is_absent = field.is_required() or default in (None, "")
        meaning = plain(str(field.description), [*Settings.model_fields, *ConnectionSettings.model_fields])
        yield (
            code(name),
            ("required" if field.is_required() else "not set") if is_absent else amount(default, unit),
            unit,
            accepted_by(what, name, field),
            meaning,
        )


def between(fields: Mapping[str, FieldInfo], first: str, last: str) -> dict[str, FieldInfo]:
    """The fields from one to another, both included."""
    names = list(fields)
    return {name: fields[name] for name in names[names.index(first) : names.index(last) + 1]}


# --- Options ----------------------------------------------------------------------------------------------------------


def option_rows(command: click.Command) -> Iterator[Sequence[str]]:
    """The options of a command of click."""
    context = click.Context(command)
    for param in command.params:
        record = param.to_info_dict()
        if not isinstance(param, click.Option) or param.name == "version":
            continue
        variable = f" Environment: `{param.envvar}`." if param.envvar else ""
        default = param.get_default(context)
        is_absent = default is None or param.is_flag or "Sentinel" in str(default)
        kind = record["type"]
        accepted = {"IntRange": f"{kind.get('min')} to {kind.get('max')}"}.get(kind["param_type"], "")
        if not accepted and not param.is_flag:
            accepted = "a path" if kind["param_type"] == "Path" else "text"
        yield (
            ", ".join(map(code, param.opts)),
            "" if is_absent else code(default),
            "",
            accepted,
            plain(f"{param.help}{variable}"),
        )


# --- The page ---------------------------------------------------------------------------------------------------------


class Tables:
    """Makes the tables that markers ask for, and notes which settings were shown."""

    def __init__(self) -> None:
        process = {name: field for name, field in ProcessSettings.model_fields.items() if name != "connection"}
        self.fields: dict[str, Mapping[str, FieldInfo]] = {
            "bridge": Settings.model_fields,
            "link": ConnectionSettings.model_fields,
            "process": process,
            "console": ConsoleSettings.model_fields,
        }
        self.shown: list[tuple[str, str]] = []

    def lines(self, marker: str) -> Iterator[str]:
        """The lines of one table.

        Raises:
            ValueError: the marker asks for none.
        """
        what, *names = marker.split()
        if what == "module":
            yield from table(module_rows())
        elif what == "serve":
            yield from table(option_rows(serve_command), ("option", *HEAD[1:]))
        elif what == "holdmq":
            yield from table(option_rows(holdmq_command), ("option", *HEAD[1:]))
        elif what in self.fields:
            fields = self.fields[what]
            first, last = names or (next(iter(fields)), list(fields)[-1])
            part = between(fields, first, last)
            self.shown += [(what, name) for name in part]
            yield from table(rows_of(what, part))
        else:
            raise ValueError(
                f"{PAGE.name}: marker {marker!r}; expected module, bridge, link, process, console, serve or holdmq"
            )

    def check(self) -> None:
        """Raises ValueError if a setting has no table, or several."""
        expected = [(what, name) for what, fields in self.fields.items() for name in fields]
        if sorted(self.shown) != sorted(expected):
            missing = sorted(set(expected) - set(self.shown))
            raise ValueError(f"{PAGE.name}: without a table, or in several: {missing or sorted(self.shown)}")


def generated(text: str) -> str:
    """The page with its tables as they have to be.

    Raises:
        ValueError: a marker is wrong, or a setting has no table.
    """
    tables = Tables()

    def made(found: re.Match[str]) -> str:
        lines = "\n".join(tables.lines(found[1]))
        return f"<!-- generated: {found[1]} -->\n\n{lines}\n\n<!-- end -->\n"

    page = MARKED.sub(made, text)
    tables.check()
    return page


def main() -> int:
    """Writes or checks the page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, show what is not up to date")
    check = parser.parse_args().check
    present = PAGE.read_text(encoding="utf-8")
    text = generated(present)
    if present == text:
        return 0
    name = str(PAGE.relative_to(REPOSITORY))
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        print(name)
        return 0
    sys.stdout.writelines(difflib.unified_diff(present.splitlines(True), text.splitlines(True), name, name))
    print(f"{name} is not up to date: run {Path(__file__).relative_to(REPOSITORY)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
