"""docs/commands/ and the server say the same of the module's commands, and every transcript is what redis-cli prints.

A transcript is a block of lines: a command after "> ", then what redis-cli -3 prints for it.  "…" in a line stands for
any text.  A number of 13 or 16 digits is a time or an epoch, one of 40 hexadecimal digits a node of a cluster: it
stands for another one of as many digits, for the same one wherever it occurs in the transcript, in later commands, too.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import Cluster, RawClient, ReplyError, Server, eventually
from tests.support.pages import Block, blocks
from tools import command_pages
from tools.command_pages import Argument, Command

PAGES = (
    "docs/commands/channel.md",
    "docs/commands/history.md",
    "docs/commands/server.md",
    "docs/commands/session.md",
    "docs/commands/topic.md",
)
TRANSCRIPTS = [block for page in PAGES for block in blocks(page, "redis transcript")]
CLUSTER_PAGES = ("docs/commands/outbox.md", "docs/commands/route.md", "docs/commands/topic.md")
PROMPT = "> "
NODE_ID = 40
ANY = "…"
CHANGING = re.compile(rf"{ANY}|(?<!\d)1\d{{12}}(?:\d{{3}})?(?!\d)|\b[\da-f]{{40}}\b")
SUBSCRIBING = ("SUBSCRIBE ", "PSUBSCRIBE ", "SSUBSCRIBE ")
CLI_S = 30

READING = {
    "CHANNEL.LAST",
    "CHANNEL.RANGE",
    "CHANNEL.LEN",
    "CHANNEL.KEY",
    "CHANNEL.LIST",
    "CHANNEL.POLICY",
    "SESSION.LAST",
    "SESSION.INFO",
    "SESSION.LIST",
    "SESSION.SUBSCRIPTIONS",
    "TOPIC.GROUPS",
    "TOPIC.MATCH",
    "TOPIC.RETAINED",
    "HISTORY.STORES",
    "HISTORY.REPLAY",
    "HISTORY.INFO",
    "HISTORY.SEQ",
    "HISTORY.RANGE",
    "HISTORY.PATTERNS GET",
    "HISTORY.PATTERNS STATS",
    "HISTORY.PATTERNS PROPOSE",
    "HISTORY.CHECK",
    "HOLDMQ.READ",
    "HOLDMQ.CHECK",
    "OUTBOX.READ",
    "ROUTE.INFO",
    "CHANNEL.DRYRUN START",
    "CHANNEL.DRYRUN STOP",
    "CHANNEL.DRYRUN REPORT",
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
    "HISTORY.PATTERNS PREPARE",
    "HISTORY.PATTERNS COMMIT",
    "ROUTE.ADD",
    "ROUTE.FEED",
}


@pytest.fixture
def commands(server: Server) -> dict[str, Command]:
    """What the server says of the module's commands."""
    return command_pages.read_commands(server.client(protocol=3, decode_responses=True))


@pytest.fixture
def raw3(server: Server) -> Iterator[RawClient]:
    """A RESP3 connection: maps are maps."""
    with RawClient(server.port, protocol=3) as connection:
        yield connection


# --- The pages and the table ------------------------------------------------------------------------------------------


def test_the_pages_say_what_the_server_says(server: Server) -> None:
    assert command_pages.check(server.client(protocol=3, decode_responses=True)) == []


@pytest.fixture
def broken(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str, str], list[str]]:
    """Checks a copy of the pages in which a text of one page was replaced by another."""

    def check(page: str, old: str, new: str) -> list[str]:
        for path in command_pages.PAGES.glob("*.md"):
            (tmp_path / path.name).write_text(path.read_text())
        text = (tmp_path / page).read_text()
        assert old in text
        (tmp_path / page).write_text(text.replace(old, new, 1))
        pages = command_pages.read_pages(tmp_path)
        monkeypatch.setattr(command_pages, "read_pages", lambda: pages)
        return command_pages.check(server.client(protocol=3, decode_responses=True))

    return check


@pytest.mark.parametrize(
    ("page", "old", "new", "found"),
    [
        ("session.md", "## SESSION.LAST\n", "## The last one\n", "SESSION.LAST has no entry"),
        ("session.md", "## SESSION.LAST\n", "## SESSION.LOST\n", "SESSION.LOST is no command"),
        ("session.md", "## SESSION.LAST\n", "## SESSION.INFO\n", "SESSION.INFO has 2 entries"),
        ("session.md", "| `BOUNDED` |", "| `UNBOUNDED` |", "session.md, SESSION.FETCH: the table of arguments has"),
        ("session.md", "`FENCED`, `NOSESSION`", "`FENCES`", "FENCES is no error code of the module"),
        ("session.md", "**Reply:**", "Reply:", "session.md, SESSION.OPEN: '**Reply:**' is missing"),
        ("topic.md", "```redis transcript\n", "```text\n", "topic.md, TOPIC.PUBLISH: '```redis transcript' is missing"),
        (
            "history.md",
            "Returns how many",
            "One. Two. Three. Returns",
            "the description has 4 sentences: 1 or 2 expected",
        ),
        ("history.md", "`HELD`, ", "", "no entry names the error code HELD"),
        ("index.md", "| `HELD` |", "| |", "index.md: the table of errors has no HELD"),
        ("index.md", "Returns the state of a session.", "Nothing.", "index.md is not up to date"),
        ("session.md", "SESSION.FETCH key [EPOCH epoch]", "SESSION.FETCH key", "session.md is not up to date"),
        ("topic.md", "- **Complexity:** O(", "- **Complexity:** P(", "topic.md is not up to date"),
        ("server.md", "`HOLDMQ.INTERNAL`", "Something", "server.md does not say that HOLDMQ.INTERNAL is internal"),
    ],
)
def test_a_page_that_says_something_else_is_found(
    broken: Callable[[str, str, str], list[str]], page: str, old: str, new: str, found: str
) -> None:
    assert [line for line in broken(page, old, new) if found in line]


def test_a_syntax_is_written_as_command_references_write_it() -> None:
    number = Argument("n", "integer")
    pair = Argument("pair", "block", flags=frozenset({"multiple"}), parts=(number, Argument("text", "string")))
    either = (Argument("now", "pure-token", "NOW"), Argument("ms", "integer", "FROM"))
    option = frozenset({"optional"})
    group = (Argument("id", "string"), Argument("after", "integer", "AFTER", option), pair)
    expected = {
        Argument("c", "string", "CHANNEL", frozenset({"multiple"})): ("CHANNEL c [c ...]", ["CHANNEL c"]),
        Argument("c", "string", "CHANNEL", frozenset({"multiple", "multiple_token"})): (
            "CHANNEL c [CHANNEL c ...]",
            ["CHANNEL c"],
        ),
        Argument("start", "oneof", parts=either): ("<NOW | FROM ms>", ["NOW", "FROM ms"]),
        Argument("start", "oneof", flags=option, parts=either): ("[NOW | FROM ms]", ["NOW", "FROM ms"]),
        Argument("by", "block", "BY", option, group): (
            "[BY id [AFTER after] n text [n text ...]]",
            ["BY id n text", "AFTER after"],
        ),
    }
    assert {argument: (argument.syntax(), list(argument.labels())) for argument in expected} == expected


# --- The table itself -------------------------------------------------------------------------------------------------


def needed(arguments: tuple[Argument, ...]) -> list[str]:
    """The words that a command needs at least, tokens among them; of alternatives those of the shortest."""
    words: list[str] = []
    for argument in arguments:
        if argument.is_optional:
            continue
        words += [argument.token] if argument.token else []
        if argument.kind == "oneof":
            shortest = min([needed((part,)) for part in argument.parts], key=len)
            words += shortest
        elif argument.parts:
            words += needed(argument.parts)
        elif argument.kind != "pure-token":
            words.append(argument.name)
    return words


def is_exact(arguments: tuple[Argument, ...]) -> bool:
    return not any(
        argument.is_optional or "multiple" in argument.flags or argument.kind == "oneof" or not is_exact(argument.parts)
        for argument in arguments
    )


def test_every_command_describes_itself(commands: dict[str, Command]) -> None:
    for command in commands.values():
        assert command.summary.endswith("."), command.name
        assert command.complexity.startswith("O("), command.name
        assert re.fullmatch(r"\d+\.\d+\.\d+", command.since), command.name
        assert command.name.count(".") == 1


def test_the_arity_of_a_command_is_that_of_its_arguments(commands: dict[str, Command], raw3: RawClient) -> None:
    for command in commands.values():
        if command.is_container:
            continue
        words = command.name.split()
        least, exact = len(words) + len(needed(command.arguments)), is_exact(command.arguments)
        assert command.arity == (least if exact else -least), command.name
        for count in [*range(least - len(words)), *([least - len(words) + 1] if exact else [])]:
            with pytest.raises(ReplyError, match="wrong number of arguments"):
                raw3.call(*words, *["{x}"] * count)


def test_a_command_of_a_session_has_its_key_and_one_of_topics_has_none(
    commands: dict[str, Command], raw3: RawClient
) -> None:
    for name, command in commands.items():
        words = [name, *["{x}"] * len(needed(command.arguments))]
        if name == "SESSION.OWNER":  # its key is derived from the name
            assert command.key == "`name` gives the hash slot, and is not a key itself"
        elif name == "SESSION.LIST":
            assert command.key == "none"
        elif name.startswith("SESSION."):
            assert raw3.call("COMMAND", "GETKEYS", *words) == [b"{x}"]
            assert command.key == ("`key`, read" if name in READING else "`key`, read and written")
        elif name.startswith("TOPIC."):
            error = "no key arguments" if len(words) > 1 else "no key arguments|wrong number"  # of GETKEYS itself
            with pytest.raises(ReplyError, match=error):
                raw3.call("COMMAND", "GETKEYS", *words)


def test_a_command_that_writes_says_so_and_one_that_stores_needs_memory(
    commands: dict[str, Command], raw3: RawClient
) -> None:
    for name, command in commands.items():
        if command.is_container:
            continue
        reply: Any = raw3.call("COMMAND", "INFO", name.replace(" ", "|"))
        flags = set(reply[0][2])
        assert ("readonly" in flags) == (name in READING), name
        # CHANNEL.PUBLISH stands in for PUBLISH, which is neither.
        assert ("write" in flags) == (name not in READING and not name.endswith((".SPUBLISH", "CHANNEL.PUBLISH"))), name
        assert ("denyoom" in flags) >= (name in GROWING), name


# --- Transcripts ------------------------------------------------------------------------------------------------------


class Transcript:
    """A conversation as a page prints it, compared with a real one.

    Args:
        block: the page's.
        port: of the server.
        output: a file for what a subscriber prints.
    """

    def __init__(self, block: Block, port: int, output: Path) -> None:
        self.block = block
        self.port = port
        self.output = output
        self._numbers: dict[str, str] = {}  # of the page, and what the server says in their place

    def turns(self) -> list[tuple[str, list[str]]]:
        """Each command with the lines of its reply."""
        turns: list[tuple[str, list[str]]] = []
        for line in self.block.text.splitlines():
            if line.startswith(PROMPT):
                turns.append((line.removeprefix(PROMPT), []))
            else:
                turns[-1][1].append(line)
        return turns

    def run(self) -> None:
        """Have the conversation."""
        for command, reply in self.turns():
            assert reply, f"{self.block}: {command} has no reply"
            command = CHANGING.sub(lambda match: self._numbers.get(match[0], match[0]), command)  # noqa: PLW2901
            if command.startswith(SUBSCRIBING):
                self._subscribe(command, reply)
            else:
                self._compare(command, reply, self._typed(command))

    def matches(self, lines: list[str], printed: list[str]) -> bool:
        """Whether the page's lines are these; if so, the numbers in them are known from now on."""
        text, found = "\n".join(lines), dict(self._numbers)
        names: list[str] = []

        def pattern(at: re.Match[str]) -> str:
            if at[0] == ANY:
                return ".*"
            if at[0] in found:
                return re.escape(found[at[0]])
            if at[0] in names:
                return rf"(?P=n{names.index(at[0])})"
            names.append(at[0])
            digits = r"[\da-f]" if len(at[0]) == NODE_ID else r"\d"
            return rf"(?P<n{len(names) - 1}>{digits}{{{len(at[0])}}})"

        parts = re.split(f"({CHANGING.pattern})", text)
        whole = "".join(
            pattern(at) if (at := CHANGING.fullmatch(part)) is not None else re.escape(part) for part in parts
        )
        match = re.fullmatch(whole, "\n".join(printed))
        if match is not None:
            self._numbers = found | {name: match[f"n{i}"] for i, name in enumerate(names)}
        return match is not None

    def _compare(self, command: str, reply: list[str], printed: list[str]) -> None:
        assert self.matches(reply, printed), "\n".join(
            [f"{self.block}: {command} prints", *printed, "and the page has", *reply]
        )

    def _typed(self, command: str) -> list[str]:
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), "-3", "--no-raw"],  # noqa: S607 (of the package redis-tools)
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=CLI_S,
            check=True,
        )
        assert done.stderr == ""
        return [line.rstrip() for line in done.stdout.rstrip("\n").splitlines()]

    def _subscribe(self, command: str, reply: list[str]) -> None:
        """It prints forever; its first line says how to end it, differently in each release."""

        def printed() -> list[str]:
            return [line for line in self.output.read_text().splitlines() if not line.startswith("Reading messages")]

        with self.output.open("wb") as file:
            process = subprocess.Popen(
                ["redis-cli", "-p", str(self.port), "--no-raw", *command.split()],  # noqa: S607 (as above)
                stdout=file,
                stdin=subprocess.DEVNULL,
            )
        try:
            eventually(lambda: len(printed()) >= len(reply), what=f"the reply of {command}")
        finally:
            process.kill()
            process.wait()
        self._compare(command, reply, printed())


@pytest.mark.parametrize("block", TRANSCRIPTS, ids=str)
def test_a_transcript_is_what_the_server_answers(server: Server, tmp_path: Path, block: Block) -> None:
    Transcript(block, server.port, tmp_path / "output").run()


@pytest.mark.parametrize("page", CLUSTER_PAGES)
def test_the_transcripts_of_a_cluster_are_what_its_node_answers(
    fresh_cluster: Callable[..., Cluster], tmp_path: Path, page: str
) -> None:
    (node,) = fresh_cluster(1).nodes
    client = node.client()
    for block in blocks(page, "redis transcript cluster"):
        Transcript(block, node.port, tmp_path / "output").run()
        client.flushall()
        client.execute_command("ROUTE.RENEW", client.execute_command("ROUTE.INFO")[b"generation"])


def test_a_transcript_is_compared_line_by_line_and_number_by_number(tmp_path: Path) -> None:
    transcript = Transcript(Block("page", 1, "redis transcript", ""), 0, tmp_path)
    assert transcript.matches(['1) "a…z"', "2) 1764547200000"], ['1) "a, b, z"', "2) 1795540556630"])
    assert transcript.matches(["1764547200000 1764547200001"], ["1795540556630 1795540556999"])
    assert not transcript.matches(["1764547200000"], ["1795540556999"])
    assert not transcript.matches(["1764547200002"], ["17955405566301"])
    assert not transcript.matches(["1764547200003 1764547200003"], ["1795540556630 1795540556631"])
    assert not transcript.matches(["(integer) 5"], ["(integer) 6"])
    assert not transcript.matches(["a", "b"], ["a"])
    assert not transcript.matches(["a…"], ["a", "b"])
