"""The blocks of the repository's pages, each with the test that runs it, or the reason why none does.

A block opens with a word that says what it is, and perhaps a name:

    ```sh            commands; a shell runs them
    ```redis         commands of the server, one a line
    ```redis transcript   the same after "> ", each with what redis-cli prints for it
    ```python        a program
    ```conf, toml    a configuration file; what reads it has to take it
    ```text          a picture or a grammar; nothing can run it
    ```text output   what the commands before it print

A runner asks here for its blocks, so that it has all of them.  tests/system/test_page_blocks.py fails on a block that
nobody runs.
"""

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

_SHELL = "tests/system/test_pages.py"
_WHEELS = "tools/try_pages.py"  # `make wheels`
_TRANSCRIPTS = "tests/module/test_command_pages.py"
RUN_BY = {
    ("README.md", "sh"): _SHELL,
    ("README.md", "python"): _SHELL,
    ("README.md", "text output"): _SHELL,
    ("docs/access.md", "redis"): "tests/module/server/test_access_topics.py",
    ("docs/backup.md", "sh"): _SHELL,
    **{
        (f"docs/commands/{family}.md", "redis transcript"): _TRANSCRIPTS
        for family in ("channel", "history", "server", "session", "topic")
    },
    ("docs/commands/topic.md", "redis transcript cluster"): _TRANSCRIPTS,
    ("docs/commands/outbox.md", "redis transcript cluster"): _TRANSCRIPTS,
    ("docs/commands/route.md", "redis transcript cluster"): _TRANSCRIPTS,
    ("docs/cluster.md", "sh compose"): "tests/compose/test_cluster_stack.py",
    **{
        ("docs/cluster.md", kind): "tests/system/test_page_cluster.py"
        for kind in ("conf node", "sh add", "sh bridge", "sh create", "sh failover", "sh look", "sh remove")
    },
    ("docs/configuration.md", "sh"): _SHELL,
    ("docs/configuration.md", "text output"): _SHELL,
    **{
        ("docs/console.md", kind): "tests/console/test_page_console.py"
        for kind in ("conf nginx", "sh", "sh api", "sh https", "sh proxy", "sh setup")
    },
    ("docs/existing-server.md", "sh"): _SHELL,
    ("docs/existing-server.md", "text output"): _SHELL,
    ("docs/failover.md", "conf sentinel"): "tests/system/test_page_failover.py",
    ("docs/failover.md", "conf server"): "tests/system/test_page_failover.py",
    ("docs/failover.md", "sh"): "tests/system/test_page_failover.py",
    ("docs/getting-started.md", "python"): _SHELL,
    ("docs/getting-started.md", "sh"): _SHELL,
    ("docs/getting-started.md", "sh pip"): _WHEELS,
    ("docs/getting-started.md", "text output"): _SHELL,
    ("docs/install.md", "sh"): _SHELL,
    ("docs/install.md", "sh pip"): _WHEELS,
    ("docs/install.md", "sh compose"): "tests/compose/test_stack.py",
    ("docs/install.md", "sh systemd"): "tests/system/test_systemd.py",
    ("docs/monitoring.md", "sh traces"): "tests/bridge/test_traces.py",
    ("docs/monitoring.md", "text output"): "tests/bridge/test_page_monitoring.py",
    ("docs/mqtt.md", "sh"): _SHELL,
    ("docs/mqtt-access.md", "sh"): _SHELL,
    ("docs/mqtt-access.md", "text output"): _SHELL,
    ("docs/mqtt-access.md", "text commands"): "tests/bridge/test_auth_command_line.py",
    ("docs/mqtt-link.md", "sh"): "tests/bridge/uplink/test_uplink_page.py",
    ("docs/mqtt-link.md", "toml"): "tests/bridge/uplink/test_uplink_page.py",
    ("docs/operations.md", "conf all"): "tests/module/test_page_settings.py",
    ("docs/operations.md", "conf some"): "tests/module/test_page_settings.py",
    ("docs/operations.md", "sh"): _SHELL,
    ("docs/operations.md", "sh drain"): "tests/bridge/test_drain.py",
    ("docs/pipeline.md", "python"): "tests/pipeline/test_page.py",
    ("docs/pipeline.md", "python application"): "tests/pipeline/test_spark_cluster.py",
    ("docs/pipeline.md", "sh"): "tests/pipeline/test_page.py",
    ("docs/pipeline.md", "sh cluster"): "tests/pipeline/test_spark_cluster.py",
    ("docs/pipeline.md", "sh postgres"): "tests/pipeline/test_migrate.py",
    ("docs/python.md", "python"): "tests/client/test_documentation.py",
    ("docs/python.md", "python celery"): "tests/client/test_prefork.py",
    ("docs/python.md", "python decoded"): "tests/client/test_documentation.py",
    ("docs/python.md", "python gunicorn"): "tests/client/test_gunicorn.py",
    ("docs/python.md", "sh"): "tests/client/test_documentation.py",
    ("docs/sizing.md", "sh"): _SHELL,
}
"""Page and kind of block, and the test that runs all of these."""

NOT_RUN = {
    ("README.md", "make demo"): "builds everything again and serves forever; CI calls both targets",
    (
        "README.md",
        "sudo apt-get install",
    ): "changes the system; tests/system/test_tools.py compares it with tools/needed.sh",
}
"""Page and beginning of a block that no test can run, and why."""

_OPENING = re.compile(r"^(```+|~~~+)(.*)$")
_LIST = re.compile(r"^\s*(?:[-*+]|\d+\.)\s")


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        kind: what stands after the opening, as "sh" or "text output"; empty for a block without one.
    """

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.kind or 'without a label'})"


def pages() -> list[str]:
    """Every page, by its path in the repository."""
    found = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "bench").glob("*.md")]
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in found)


def all_blocks(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    return parsed(page, (REPOSITORY / page).read_text())


def parsed(page: str, text: str) -> list[Block]:
    """The blocks of a text in their order, those that are indented and not fenced as well."""
    found: list[Block] = []
    lines = text.splitlines()
    at = 0
    is_text = is_list = False  # the paragraph before
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        opening = _OPENING.match(line.strip())
        if opening is not None:
            while lines[at].strip() != opening[1]:
                at += 1
            found.append(Block(page, begin + 1, opening[2].strip(), "\n".join(lines[begin + 1 : at])))
            at += 1
            is_text = False
        elif line.startswith(("    ", "\t")) and not is_text and not is_list:
            while at < len(lines) and (lines[at].startswith(("    ", "\t")) or not lines[at].strip()):
                at += 1
            found.append(Block(page, begin + 1, "", "\n".join(lines[begin:at])))
        else:
            is_text = bool(line.strip())
            if is_text and not line.startswith(" "):
                is_list = _LIST.match(line) is not None
    return found


def exemption(block: Block) -> str | None:
    """Why no test runs this block; None: one does."""
    reasons = [why for (page, begin), why in NOT_RUN.items() if page == block.page and block.text.startswith(begin)]
    return reasons[0] if reasons else None


def blocks(page: str, *kinds: str) -> list[Block]:
    """The blocks that a runner has to run, in their order; there is at least one."""
    assert all((page, kind) in RUN_BY for kind in kinds), f"add {page} with {kinds} to RUN_BY"
    found = [block for block in all_blocks(page) if block.kind in kinds and exemption(block) is None]
    assert found, f"{page} has no block of {kinds}"
    return found
