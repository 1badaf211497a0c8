"""Writes into docs/commands/ what the server says about the module's commands, and checks the rest of these pages.

    python tools/command_pages.py            writes the generated parts
    python tools/command_pages.py --check    changes nothing; exit status 1 if something is wrong, one line for each

It starts a server with the module and reads COMMAND DOCS and COMMAND INFO, which come from the module's command table.
Generated are the syntax of each entry, its last list (complexity, since, ACL categories, key), and the table of all
commands in index.md.  Checked are the entries, their form, their arguments and their error codes.

An entry is a section whose heading is the name of a command:

    ## SESSION.LAST

    ```text
    SESSION.LAST key                        generated
    ```

    At most two sentences.

    | Argument | Values | Meaning |         one row for each argument, unless the command has none
    | --- | --- | --- |
    | `key` | a session key | the session |

    **Reply:** ...

    **Errors:** `ERR`, `WRONGTYPE`.

    - **Complexity:** O(1)                  generated
    - ...

    ```redis transcript
    ...                                     run by tests/module/test_command_pages.py
    ```
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from holdmq.server import (
    ServerProcess,
    configuration,
    find_module,
    find_server,
    next_free_port,
    write_configuration,
)

REPOSITORY = Path(__file__).parents[1]
PAGES = REPOSITORY / "docs" / "commands"
INDEX = "index.md"
INTERNAL = frozenset({"HOLDMQ.INTERNAL", "HOLDMQ.SPUBLISH"})
"""Commands without an entry: server.md says in a sentence that they are internal."""

WIDTH = 92
INDENT = " " * 4
GAP = re.compile(r" (?=\[[A-Z])")
"""Where a group that is longer than a line is broken."""
MAX_SENTENCES = 2
FIRST_PORT = 27300
HEADING = re.compile(r"^[A-Z]+\.[A-Z]+(?: [A-Z]+)?$")
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
SYNTAX = re.compile(r"\A(## .*\n\n)```text\n(.*?)\n```\n", re.DOTALL)
FACTS = re.compile(r"^- \*\*Complexity:\*\*.*?(?=\n\n|\n?\Z)", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"(^## All commands\n\n).*?(?=^## )", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)
ARGUMENTS = re.compile(r"^\| Argument \|.*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)
ERRORS = re.compile(r"^\*\*Errors:\*\* (.*)$", re.MULTILINE)
CODE = re.compile(r"`([A-Z]+)`")
DECLARED = re.compile(r"\bX\(ERROR_\w+,\s*\"([A-Z]+)\"")
SENTENCE = re.compile(r"[.?!](?=\s|$)")
PARTS = ("```text\n", "| Argument |", "**Reply:**", "**Errors:**", "- **Complexity:**", "```redis transcript")
"""What an entry consists of, in this order; only the arguments may be missing."""


@dataclass(frozen=True)
class Argument:
    """One argument of a command, or a group of them.

    Attributes:
        kind: as the server calls it; "block" and "oneof" are groups.
        token: the word before it; empty: none.
        parts: the arguments of a group.
    """

    name: str
    kind: str
    token: str = ""
    flags: frozenset[str] = frozenset()
    parts: tuple["Argument", ...] = ()

    @property
    def is_optional(self) -> bool:
        """Whether it may be left out."""
        return "optional" in self.flags

    def words(self) -> str:
        """Its syntax without the brackets of an optional one."""
        if self.kind == "oneof":
            return " | ".join(part.words() if part.is_optional else part.syntax() for part in self.parts)
        inner = "" if self.kind == "pure-token" else self.name
        if self.kind == "block":
            inner = " ".join(part.syntax() for part in self.parts)
        once = f"{self.token} {inner}".strip()
        if "multiple" not in self.flags:
            return once
        again = once if "multiple_token" in self.flags else inner
        return f"{once} [{again} ...]"

    def syntax(self) -> str:
        """Its syntax, as command references write it."""
        if self.is_optional:
            return f"[{self.words()}]"
        return f"<{self.words()}>" if self.kind == "oneof" else self.words()

    def labels(self) -> Iterator[str]:
        """What the rows of a table of arguments say: a group's needed words together, its options by themselves."""
        if self.kind == "oneof":
            for part in self.parts:
                yield from part.labels()
            return
        inner = [] if self.kind == "pure-token" else [self.name]
        rows: list[str] = []
        if self.kind == "block":
            inner = []
            for part in self.parts:
                if part.token or part.is_optional or part.kind == "oneof":
                    rows += part.labels()
                else:
                    inner += part.labels()
        if self.token or inner:
            yield " ".join([*([self.token] if self.token else []), *inner])
        yield from rows


@dataclass(frozen=True)
class Command:
    """What the server says about a command.

    Attributes:
        name: as it is sent, a subcommand's after a space.
        arity: words at least, the name's among them; negative: there may be more.
        categories: of the ACL; none before Redis 7.2.
        key: which argument is a key, and how it is used.
    """

    name: str
    summary: str
    since: str
    complexity: str
    arity: int
    categories: tuple[str, ...]
    key: str
    arguments: tuple[Argument, ...]
    is_container: bool

    def syntax(self) -> str:
        """Name and arguments, in lines of at most WIDTH characters where that can be done."""
        lines = [self.name]
        for argument in self.arguments:
            word = argument.syntax()
            pieces = [word] if len(INDENT) + len(word) <= WIDTH else GAP.split(word)
            for at, piece in enumerate(pieces):
                if len(lines[-1]) + 1 + len(piece) > WIDTH or (at == 0 and len(pieces) > 1):
                    lines.append(INDENT[1:] if at == 0 else INDENT + INDENT[1:])
                lines[-1] += " " + piece
        return "\n".join(lines)

    def labels(self) -> list[str]:
        """The first cells of its table of arguments."""
        return [label for argument in self.arguments for label in argument.labels()]

    def facts(self) -> str:
        """The generated list of its entry."""
        categories = ", ".join(f"`@{category}`" for category in self.categories)
        lines = [
            f"- **Complexity:** {self.complexity}",
            f"- **Since:** {self.since}",
            f"- **ACL categories:** {categories}",
            f"- **Key:** {self.key}",
        ]
        return "\n".join(lines)


def read_commands(client: redis.Redis) -> dict[str, Command]:
    """The module's commands, by name; `client` speaks RESP3 and decodes replies."""
    listed = client.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "holdmq")
    found = [_command(client, str(name)) for name in sorted(listed)]
    return {command.name: command for command in found}


def _command(client: redis.Redis, name: str) -> Command:
    docs: Mapping[str, Any] = client.execute_command("COMMAND DOCS", name)[name]
    ((_, arity, _, _, _, _, categories, _, specs, subcommands),) = client.execute_command("COMMAND INFO", name)
    arguments = tuple(map(_argument, docs.get("arguments", [])))
    return Command(
        name=name.replace("|", " "),
        summary=docs["summary"],
        since=docs["since"],
        complexity=docs["complexity"],
        arity=arity,
        categories=tuple(sorted(category.removeprefix("@") for category in categories)),
        key=_key(specs, arguments),
        arguments=arguments,
        is_container=bool(subcommands),
    )


def _argument(given: Mapping[str, Any]) -> Argument:
    return Argument(
        name=given["name"],
        kind=given["type"],
        token=given.get("token", ""),
        flags=frozenset(given.get("flags", ())),
        parts=tuple(map(_argument, given.get("arguments", ()))),
    )


def _key(specs: Any, arguments: tuple[Argument, ...]) -> str:
    if not specs:
        return "none"
    flags = {str(flag).lower() for flag in specs[0]["flags"]}
    name = f"`{arguments[0].name}`"
    if "not_key" in flags:
        return f"{name} gives the hash slot, and is not a key itself"
    return f"{name}, {'read' if 'ro' in flags else 'read and written'}"


# --- The pages --------------------------------------------------------------------------------------------------------


@dataclass
class Page:
    """A page of the reference.

    Attributes:
        name: its file.
        sections: its text, cut before each heading of the second level.
    """

    name: str
    sections: list[str] = field(default_factory=list)

    def entries(self) -> Iterator[tuple[int, str]]:
        """The sections that are entries: their places, and the names of their commands."""
        for at, section in enumerate(self.sections):
            heading = section.split("\n", 1)[0].removeprefix("## ")
            if section.startswith("## ") and HEADING.match(heading):
                yield at, heading

    def text(self) -> str:
        """The whole of it."""
        return "".join(self.sections)


def read_pages(folder: Path = PAGES) -> list[Page]:
    """The pages in the order of the reference: index.md, then by name."""
    paths = sorted(folder.glob("*.md"), key=lambda path: (path.name != INDEX, path.name))
    return [Page(path.name, SECTION.split(path.read_text())) for path in paths]


def anchor(heading: str) -> str:
    """What a link calls a heading, on GitHub as in MkDocs."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def generate(pages: list[Page], commands: Mapping[str, Command]) -> None:
    """Put what the server says into the pages; entries that are not as they should be are left alone."""
    for page in pages:
        for at, name in page.entries():
            if name in commands:
                page.sections[at] = _entry(page.sections[at], commands[name])
        if page.name == INDEX:
            table = _table(pages, commands)
            page.sections = SECTION.split(COMMANDS.sub(rf"\g<1>{table}", page.text()))


def _entry(section: str, command: Command) -> str:
    section = SYNTAX.sub(lambda match: f"{match[1]}```text\n{command.syntax()}\n```\n", section, count=1)
    return FACTS.sub(lambda _: command.facts(), section, count=1)


def _table(pages: list[Page], commands: Mapping[str, Command]) -> str:
    lines = ["| Command | What it does |", "| --- | --- |"]
    for page in pages:
        for _, name in page.entries():
            if name in commands:
                lines.append(f"| [`{name}`]({page.name}#{anchor(name)}) | {commands[name].summary} |")
    return "\n".join(lines) + "\n\n"


# --- What has to hold -------------------------------------------------------------------------------------------------


def declared_codes() -> set[str]:
    """The error codes that the module replies, from its one table."""
    tables = [path.read_text() for path in (REPOSITORY / "redis_module").rglob("error_table.h")]
    codes = {code for text in tables for code in DECLARED.findall(text)}
    if not codes:
        raise ValueError("no error code found in error_table.h of redis_module/: has the table another form?")
    return codes


def problems(pages: list[Page], commands: Mapping[str, Command]) -> list[str]:
    """What is wrong in the parts that are written by hand, a sentence each."""
    found = list(_missing(pages, commands))
    codes, used = declared_codes(), set()
    for page in pages:
        for at, name in page.entries():
            if name not in commands:
                continue
            place = f"{page.name}, {name}"
            found += [f"{place}: {what}" for what in _wrong_form(page.sections[at], name)]
            found += [f"{place}: {what}" for what in _wrong_arguments(page.sections[at], commands[name])]
            stated = {code for line in ERRORS.findall(page.sections[at]) for code in CODE.findall(line)}
            found += [f"{place}: {code} is no error code of the module" for code in sorted(stated - codes)]
            used |= stated
        if page.name == INDEX:
            found += [f"{INDEX}: {what}" for what in _wrong_codes(page, codes)]
    return found + [f"no entry names the error code {code}" for code in sorted(codes - used)]


def _missing(pages: list[Page], commands: Mapping[str, Command]) -> Iterator[str]:
    entries = [name for page in pages for _, name in page.entries()]
    expected = {name for name, command in commands.items() if not command.is_container} - INTERNAL
    yield from (f"{name} has no entry" for name in sorted(expected - set(entries)))
    yield from (f"{name} is no command" for name in sorted(set(entries) - expected))
    yield from (f"{name} has {entries.count(name)} entries" for name in sorted(expected) if entries.count(name) > 1)
    server = next((page.text() for page in pages if page.name == "server.md"), "")
    yield from (f"server.md does not say that {name} is internal" for name in sorted(INTERNAL) if name not in server)


def _wrong_form(section: str, name: str) -> Iterator[str]:
    places = [section.find(part) for part in PARTS]
    for part, at in zip(PARTS, places, strict=True):
        if at < 0 and part != "| Argument |":
            yield f"{part.strip()!r} is missing"
    if [at for at in places if at >= 0] != sorted(at for at in places if at >= 0):
        yield f"the order is not {', '.join(repr(part.strip()) for part in PARTS)}"
    if f"\n> {name}" not in section.partition("```redis transcript")[2]:
        yield "its transcript does not send it"
    if SYNTAX.match(section) is None:
        yield "the syntax does not follow the heading"
        return
    description = SYNTAX.sub("", section, count=1).strip().split("\n\n", 1)[0]
    count = len(SENTENCE.findall(re.sub(r"`[^`]*`", "", description)))
    if not 1 <= count <= MAX_SENTENCES:
        yield f"the description has {count} sentences: 1 or {MAX_SENTENCES} expected"


def _wrong_arguments(section: str, command: Command) -> Iterator[str]:
    table = ARGUMENTS.search(section)
    stated = ROW.findall(table[1]) if table else []
    expected = command.labels()
    if stated != expected:
        yield f"the table of arguments has {stated}: {expected} expected"


def _wrong_codes(page: Page, codes: set[str]) -> Iterator[str]:
    section = next((text for text in page.sections if text.startswith("## Errors\n")), "")
    stated = {
        code for line in section.splitlines() if line.startswith("| `") for code in CODE.findall(line.split("|")[1])
    }
    yield from (f"the table of errors has no {code}" for code in sorted(codes - stated))


def check(client: redis.Redis) -> list[str]:
    """Everything that is wrong in the pages of the repository.

    Before Redis 7.2 a server keeps no ACL categories of modules, so generated lines are compared without them.
    """
    commands = read_commands(client)
    pages = read_pages()
    before = {page.name: page.text() for page in pages}
    generate(pages, commands)
    after = {page.name: page.text() for page in pages}
    if not any(command.categories for command in commands.values()):
        before, after = ({name: _without_categories(text) for name, text in each.items()} for each in (before, after))
    stale = [name for name in before if before[name] != after[name]]
    return problems(pages, commands) + [f"{name} is not up to date: run tools/command_pages.py" for name in stale]


def _without_categories(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("- **ACL categories:**"))


def main() -> int:
    """Writes, or checks."""
    parser = argparse.ArgumentParser(description="Write docs/commands/ from the command table, or check it.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something is wrong")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory, port = Path(name), next_free_port("127.0.0.1", FIRST_PORT)
        write_configuration(
            directory / "server.conf", configuration(port=port, directory=directory, module=find_module())
        )
        with (
            ServerProcess([find_server()], directory / "server.conf", port=port, log=directory / "log"),
            redis.Redis(port=port, protocol=3, decode_responses=True) as client,
        ):
            if options.check:
                found = check(client)
            else:
                commands, pages = read_commands(client), read_pages()
                generate(pages, commands)
                for page in pages:
                    (PAGES / page.name).write_text(page.text())
                found = problems(pages, commands)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
