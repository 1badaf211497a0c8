"""The blocks of docs/python.md run one behind the other on a real server and print what stands below them."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFAULT_URL = "redis://127.0.0.1:6379"


def printed(block: str, namespace: dict[str, Any]) -> str:
    """What a block prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(block, str(PAGE), "exec"), namespace)  # noqa: S102 - our own documentation
    return output.getvalue()


def test_the_page_on_python_prints_what_it_says(server: Server) -> None:
    namespace: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) > 5
    try:
        for block in blocks:
            expected = "".join(line[3:] + "\n" for line in block.splitlines() if line.startswith("#> "))
            assert printed(block.replace(DEFAULT_URL, server.url), namespace) == expected, block
    finally:
        namespace["hold"].close()
