"""docs/commands.md and what the server says about the module's commands are one and the same."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import RawClient, ReplyError, Server

REFERENCE = Path(__file__).parents[2] / "docs" / "commands.md"
HEADING = re.compile(r"^### (.*)$", re.MULTILINE)
SYNTAX = re.compile(r"`([^`]+)`")
READING = {
    "CHANNEL.LAST",
    "CHANNEL.RANGE",
    "CHANNEL.LEN",
    "CHANNEL.KEY",
    "CHANNEL.POLICY",
    "SESSION.LAST",
    "SESSION.INFO",
    "SESSION.LIST",
    "SESSION.SUBSCRIPTIONS",
    "TOPIC.RETAINED",
    "HISTORY.STORES",
    "HISTORY.REPLAY",
    "HISTORY.INFO",
    "HISTORY.SEQ",
    "HISTORY.RANGE",
    "HISTORY.PATTERNS|GET",
    "HISTORY.PATTERNS|STATS",
    "HISTORY.PATTERNS|PROPOSE",
    "HISTORY.CHECK",
    "HOLDMQ.READ",
    "HOLDMQ.CHECK",
    "CHANNEL.DRYRUN|START",
    "CHANNEL.DRYRUN|STOP",
    "CHANNEL.DRYRUN|REPORT",
}
GROWING = {
    "HOLDMQ.INTERNAL",
    "SESSION.ADD",
    "SESSION.IMPORT",
    "SESSION.OPEN",
    "SESSION.SUBSCRIBE",
    "TOPIC.PUBLISH",
    "HISTORY.STORE",
    "HISTORY.APPEND",
}
GROWING |= {"HISTORY.PATTERNS|PREPARE", "HISTORY.PATTERNS|COMMIT"}
CONTAINERS = {"HISTORY.PATTERNS", "CHANNEL.DRYRUN"}  # each of their subcommands is documented


def documented() -> dict[str, str]:
    """The syntax of each command of the module, by name."""
    rows = [row for heading in HEADING.findall(REFERENCE.read_text()) for row in SYNTAX.findall(heading)]
    syntaxes = [row.replace(" ", "|", 1) if row.split()[0] in CONTAINERS else row for row in rows]
    return {row.split()[0]: row for row in syntaxes if "." in row.split()[0]}


COMMANDS = documented()


@pytest.fixture
def raw3(server: Server) -> Iterator[RawClient]:
    """A RESP3 connection: maps are maps."""
    with RawClient(server.port, protocol=3) as connection:
        yield connection


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def named(reply: object) -> dict[str, Any]:
    """A map with names for keys."""
    assert isinstance(reply, dict)
    return {text(name): value for name, value in reply.items()}


# --- The syntax of the documentation ----------------------------------------------------------------------------------


def needed(syntax: str) -> list[str]:
    """The words that are not optional, the command's name among them."""
    without = syntax
    while "[" in without:
        without = re.sub(r"\[[^\[\]]*\]", " ", without)
    return [word for word in without.split() if word != "…"]


def tokens(syntax: str) -> set[str]:
    """The words in capitals behind the command's name."""
    return {word for word in re.findall(r"[A-Za-z0-9.-]+", " ".join(syntax.split()[1:])) if word.isupper()}


def positional(syntax: str) -> list[str]:
    """The needed arguments without a token before them."""
    words = needed(syntax)
    return [
        word for before, word in pairwise(words) if not word.isupper() and (before == words[0] or not before.isupper())
    ]


# --- What the server says ---------------------------------------------------------------------------------------------


def arguments(description: dict[str, Any], *, optional: bool = False) -> list[dict[str, Any]]:
    """The arguments of a description, those of groups behind their group, each with whether it may be left out."""
    found = []
    for argument in map(named, description.get("arguments", [])):
        argument["optional"] = optional or "optional" in argument.get("flags", [])
        found += [argument, *arguments(argument, optional=argument["optional"])]
    return found


def is_positional(argument: dict[str, Any]) -> bool:
    """A needed argument without a token before it, that is no group of others."""
    return not argument["optional"] and "token" not in argument and "arguments" not in argument


def information(raw: RawClient, name: str) -> list[Any]:
    """COMMAND INFO of a command."""
    reply = raw.call("COMMAND", "INFO", name)
    assert isinstance(reply, list)
    (row,) = reply
    return list(row)


def test_every_command_is_documented_and_every_documented_command_exists(raw3: RawClient) -> None:
    registered = raw3.call("COMMAND", "LIST", "FILTERBY", "MODULE", "holdmq")
    assert isinstance(registered, list)
    assert {text(name) for name in registered} == {*COMMANDS, *CONTAINERS}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_server_describes_a_command_as_it_is_documented(raw3: RawClient, name: str) -> None:
    description = named(named(raw3.call("COMMAND", "DOCS", name))[name])
    assert text(description["summary"]).endswith((".", "?"))
    assert text(description["complexity"]).startswith("O(")
    assert re.fullmatch(r"\d+\.\d+\.\d+", text(description["since"]))
    assert text(description["group"]) == "module"
    described = arguments(description)
    assert {text(argument["token"]) for argument in described if "token" in argument} == tokens(COMMANDS[name])
    assert [text(argument["name"]) for argument in described if is_positional(argument)] == positional(COMMANDS[name])
    repeated = any("multiple" in argument.get("flags", []) for argument in described)
    assert repeated == ("…" in COMMANDS[name])

    assert_arity(raw3, name)
    assert_key(raw3, name)
    assert_flags(raw3, name)


def assert_arity(raw3: RawClient, name: str) -> None:
    """The server's arity is that of the documentation."""
    words = name.split("|")
    least = len(needed(COMMANDS[name])) + len(words) - 1
    exact = "[" not in COMMANDS[name] and "…" not in COMMANDS[name]
    assert information(raw3, name)[1] == (least if exact else -least)
    for count in [*range(least - len(words)), *([least - len(words) + 1] if exact else [])]:
        with pytest.raises(ReplyError, match="wrong number of arguments"):
            raw3.call(*words, *["{x}"] * count)


def assert_key(raw3: RawClient, name: str) -> None:
    """A session's command tells its key; one of topics has none."""
    first = needed(COMMANDS[name])[1:2]
    command = [name, *["{x}"] * len(needed(COMMANDS[name])[1:])]
    if name == "SESSION.OWNER":  # its key is derived from the name
        assert first == ["name"]
        assert b"not_key" in {flag.lower().encode() for flag in map(text, information(raw3, name)[8][0][b"flags"])}
    elif name == "SESSION.LIST":
        assert first == []
    elif name.startswith("SESSION."):
        assert first == ["key"]
        assert raw3.call("COMMAND", "GETKEYS", *command) == [b"{x}"]
        flags = named(information(raw3, name)[8][0])["flags"]
        assert ("RO" if name in READING else "RW") in flags
    elif name.startswith("TOPIC."):
        with pytest.raises(ReplyError, match="no key arguments"):
            raw3.call("COMMAND", "GETKEYS", *command)


def assert_flags(raw3: RawClient, name: str) -> None:
    """A command that writes says so, and one that stores needs memory."""
    flags = set(information(raw3, name)[2])
    assert ("readonly" in flags) == (name in READING)
    # CHANNEL.PUBLISH stands in for PUBLISH, which is neither.
    assert ("write" in flags) == (name not in READING and not name.endswith((".SPUBLISH", "CHANNEL.PUBLISH")))
    assert ("denyoom" in flags) >= (name in GROWING)
