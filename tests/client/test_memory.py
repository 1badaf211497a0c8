"""The limit of memory that control groups set, in both of their versions."""

import os
from pathlib import Path

import pytest

from holdmq._memory import group_limit, memory_directives

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LIMIT = MACHINE // 2


def written(folder: Path, files: dict[str, str]) -> Path:
    """The folder with these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": f"{LIMIT}\n", "a/memory.max": "max\n"}, LIMIT),
        ("0::/a/b\n", {"a/b/memory.max": f"{LIMIT}\n", "a/memory.max": f"{LIMIT // 2}\n"}, LIMIT // 2),
        ("0::/\n", {"memory.max": f"{LIMIT}\n"}, LIMIT),  # in a container
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("4:memory:/x/y\n0::/\n", {"memory/x/y/memory.limit_in_bytes": f"{LIMIT}\n"}, LIMIT),
        ("4:memory:/not/here\n", {"memory/memory.limit_in_bytes": f"{LIMIT}\n"}, LIMIT),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("3:cpu:/\n", {"memory.max": f"{LIMIT}\n"}, None),
        ("", {}, None),
    ],
)
def test_the_least_limit_of_a_group_and_those_above_it_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    processes = tmp_path / "cgroup"
    processes.write_text(groups)
    assert group_limit(processes, written(tmp_path / "root", files)) == expected


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert group_limit(tmp_path / "none", tmp_path) is None


def test_a_new_server_gets_three_quarters_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq._memory.group_limit", lambda: 4000)
    assert memory_directives() == ("maxmemory 3000",)
    monkeypatch.setattr("holdmq._memory.group_limit", lambda: None)
    assert memory_directives() == ()
