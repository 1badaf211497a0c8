"""`make bench-sizing` measures every row of the page on sizing; how much each takes is not judged here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.sizing import sessions as session_things
from bench.sizing import weigh

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sizing.md"
ROW = re.compile(r"^\| (.+?) \| ([\d,]*) \| ([\d,]*) \| ([\d,]+) \|$", re.MULTILINE)


def test_every_row_of_the_page_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "sizing.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.sizing", "--count", "1000", "--connections", "20", "--json", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    for row in result["rows"]:
        assert row["resident_each"] > row["payload"], row
        assert row["bytes_each"] is None or row["bytes_each"] > row["payload"], row
    measured = [(what, payload) for what, payload, *_ in ROW.findall(done.stdout)]
    assert len(measured) == len(result["rows"])
    assert [(what, payload) for what, payload, *_ in ROW.findall(PAGE.read_text())] == measured
    for fact in ("date", "cpu", "server_version", "module_version", "allocator"):
        assert result[fact], fact


def test_things_that_were_not_all_made_are_an_error() -> None:
    thing = session_things(1000)[0]
    next(thing.work)
    with pytest.raises(RuntimeError, match="session: 1,000 were made, and the server has 999"):
        weigh(thing)
