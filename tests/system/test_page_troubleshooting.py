"""docs/troubleshooting.md has every error code, reason code and line of a log, and none that is not there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hiredis import ReplyError

from holdmq.core.engine import Engine
from holdmq_bridge.base.command import is_temporary
from holdmq_bridge.base.reasons import Reason, return_code
from tests.support.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.compile(r"^\|(.+)\|$", re.MULTILINE)
LEVELS = {"warning": "warning", "error": "error", "defect": "error"}

# Codes that clients send, or that say that nothing went wrong.
NOT_OF_THE_SERVER = {Reason.SUCCESS, Reason.DISCONNECT_WITH_WILL}

LITERALS = r'((?:"(?:[^"\\]|\\.)*"|PRI\w+|\s)+)'
LOGGED = re.compile(rf'sv\.Log\(\s*[\w>-]+,\s*"warning",\s*{LITERALS}[,)]')
FILLED = re.compile(r"%[.*0-9]*(?:ll|z|h)?[a-z]")


def section(title: str) -> str:
    """The text from a heading to the next one of its level, or a higher one."""
    level = title.partition(" ")[0]
    begin = PAGE.index(f"\n{title}\n")
    following = re.search(rf"^#{{2,{len(level)}}} ", PAGE[begin + len(title) + 2 :], re.MULTILINE)
    return PAGE[begin:] if following is None else PAGE[begin : begin + len(title) + 2 + following.start()]


def cells(title: str) -> list[list[str]]:
    """The rows of the tables in a section, without their heads."""
    rows = [[cell.strip() for cell in row.split("|")] for row in ROWS.findall(section(title))]
    heads = [at for at, row in enumerate(rows) if set("".join(row)) <= set("-| ")]
    left_out = {at for head in heads for at in (head, head - 1)}
    return [row for at, row in enumerate(rows) if at not in left_out]


def codes(title: str) -> list[str]:
    return [row[0].strip("`") for row in cells(title)]


def sources(folder: str, pattern: str) -> Iterator[Path]:
    yield from sorted((REPOSITORY / folder).rglob(pattern))


# --- Error codes ------------------------------------------------------------------------------------------------------


def codes_of_the_module() -> list[str]:
    """Those of error_table.h, each once."""
    (header,) = sources("redis_module", "error_table.h")
    return sorted(set(re.findall(r'X\(ERROR_\w+, "([A-Z]+)",', header.read_text(encoding="utf-8"))))


def test_every_error_code_has_an_entry() -> None:
    there = codes_of_the_module()
    assert len(there) > 20
    assert sorted(codes("### Codes of HoldMQ")) == sorted(there)


def test_every_code_that_the_bridge_retries_has_an_entry() -> None:
    own, of_server = codes("### Codes of HoldMQ"), codes("### Codes of the server")
    assert len({*own, *of_server}) == len([*own, *of_server])
    assert set(Engine.refusal_codes()) - {"other"} <= {*own, *of_server}
    assert [code for code in of_server if is_temporary(ReplyError(code))] == of_server[:6]
    assert of_server[6:] == ["NOAUTH", "WRONGPASS"]


# --- Reason codes -----------------------------------------------------------------------------------------------------


def reasons_of_the_core() -> set[int]:
    """What the engine and the codec answer by themselves."""
    found: set[int] = set()
    for path in sources("src", "*.[ch]"):
        text = path.read_text(encoding="utf-8")
        if "engine" in path.relative_to(REPOSITORY / "src").as_posix():
            found |= {int(code, 16) for code in re.findall(r"\b0x[189][0-9A-Fa-f]\b", text)}
        if "hmq_mqtt_error_reason(hmq_mqtt_error error) {" in text:
            found |= {int(code, 16) for code in re.findall(r"^#define \w+ (0x[89][0-9A-F])\b", text, re.MULTILINE)}
    return found


def reason_rows() -> Iterator[tuple[int, list[str]]]:
    code = 0
    for row in cells("## MQTT reason codes"):
        code = int(row[0].partition(" ")[0], 16) if row[0] else code
        yield code, row


def test_every_reason_code_has_an_entry() -> None:
    of_core = reasons_of_the_core()
    assert {0x10, 0x80, 0x92, 0x97} <= of_core
    sent = of_core | {int(reason) for reason in Reason} - {int(reason) for reason in NOT_OF_THE_SERVER}
    assert sorted({code for code, _ in reason_rows()}) == sorted(sent)


def test_the_return_codes_are_those_of_the_bridge() -> None:
    told = {
        code: int(found[1])
        for code, row in reason_rows()
        if (found := re.search(r"return code (\d)", " ".join(row))) is not None
    }
    assert len(told) == 10
    assert told == {code: return_code(code) for code in told}


# --- Logs -------------------------------------------------------------------------------------------------------------


def lines_of_the_module() -> set[str]:
    """What the module writes as a warning, with <> for what is filled in."""
    found = set()
    for path in sources("redis_module", "*.c"):
        text = path.read_text(encoding="utf-8")
        matched = LOGGED.findall(text)
        assert len(matched) == len(re.findall(r'sv\.Log\([^;]*?"warning"', text)), path
        for literals in matched:
            whole = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r"\bPRI\w+", '"u"', literals)))
            found.add(plain(FILLED.sub("<>", whole)))
    return found


def plain(line: str) -> str:
    """With <> for one or more of what is filled in."""
    return re.sub(r"(<>)+", "<>", re.sub(r"<[^>]*>", "<>", line))


def test_every_warning_of_the_module_has_an_entry() -> None:
    there = lines_of_the_module()
    assert len(there) >= 9
    assert sorted(plain(line) for line in codes("### Log of the server")) == sorted(there)


def events(files: Iterator[Path]) -> dict[str, str]:
    """The events of level warning or worse, with their levels."""
    found = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                if ast.unparse(node.func.value) != "log":
                    continue
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}: the event is no fixed text"
                found[str(node.args[0].value)] = LEVELS[node.func.attr]
    return found


@pytest.mark.parametrize(("title", "is_link"), [("### Log of the bridge", False), ("### Log of a link", True)])
def test_every_warning_of_the_bridge_has_an_entry(title: str, is_link: bool) -> None:
    files = (path for path in sources("bridge", "*.py") if ("uplink" in path.parts) == is_link)
    there = events(files)
    assert len(there) >= (10 if is_link else 40)
    of_page = [(row[0].strip("`"), row[1]) for row in cells(title)]
    assert len(of_page) == len({event for event, _ in of_page})
    assert dict(of_page) == there


def test_every_row_says_what_to_do() -> None:
    for title in ("## Error codes", "## MQTT reason codes", "## Log events"):
        for row in cells(title):
            assert all(len(cell) > 2 for cell in row[1:]), row
