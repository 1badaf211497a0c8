"""redis_module/server/error_table.h: the form of its texts, and that the module replies its errors and no others."""

import re
from collections import Counter

from tests.support.pages import REPOSITORY

MODULE = REPOSITORY / "redis_module"
TABLE = MODULE / "server" / "error_table.h"
LITERALS = r'(?:"(?:[^"\\]|\\.)*"|PRI\w+|[\s\\])+'
ENTRY = re.compile(rf'X\((ERROR_\w+), "([A-Z]+)",({LITERALS})\)')
REPLY = re.compile(r"\breply_error\(\s*[\w>.-]+,\s*([^,)]+)")

# Nothing that the caller could write instead would be accepted, or the name of what is missing says it.
CODES_WITHOUT_ADVICE = {"WRONGTYPE", "NOPERM", "NOSTORE", "NOSESSION", "OOM", "MOVED", "CLUSTERDOWN"}
NAMES_WITHOUT_ADVICE = {"ERROR_ARGUMENT_MISSING", "ERROR_ARGUMENT_UNEXPECTED", "ERROR_LIST_COMMAND_REFUSED"}


def entries() -> list[tuple[str, str, str]]:
    """Name, code and text of each error, in the order of the table."""
    found = []
    for name, code, literals in ENTRY.findall(TABLE.read_text(encoding="utf-8")):
        text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r"\bPRI(\w)\w+", r'"\1"', literals)))
        found.append((name, code, text))
    return found


def test_every_entry_is_read() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert len(entries()) == len(re.findall(r"\bX\(ERROR_", text)) > 100
    assert max(Counter(name for name, _, _ in entries()).values()) == 1


def test_an_error_is_replied_by_its_name_and_each_is_replied() -> None:
    files = [path for path in MODULE.rglob("*.c") if path.name != "errors.c"]
    replied = [name for path in files for name in REPLY.findall(path.read_text(encoding="utf-8"))]
    replied += re.findall(
        r"return reply_error\(ctx, (\w+)", (MODULE / "server" / "errors.c").read_text(encoding="utf-8")
    )
    assert set(replied) == {name for name, _, _ in entries()}
    direct = [path.name for path in files if "sv.ReplyWithError(" in path.read_text(encoding="utf-8")]
    assert direct == ["channel.c"], "channel.c passes on what the server itself replied; all others use reply_error"


def test_a_text_says_what_was_wrong_and_then_what_is_accepted() -> None:
    for name, code, text in entries():
        has_advice = "; " in text or "(maximum %" in text
        is_open = text.endswith(" %s")  # what follows is an argument that says it
        assert has_advice or is_open or code in CODES_WITHOUT_ADVICE or name in NAMES_WITHOUT_ADVICE, name
        assert not re.search(r"expected\W*$|\bbehind\b|no more|by others", text), name
        assert not re.search(r"[^.]\.$|[! ]$", text) or name == "ERROR_OUT_OF_MEMORY", name


def test_two_errors_have_different_texts() -> None:
    assert [text for text, often in Counter(text for _, _, text in entries()).items() if often > 1] == []
