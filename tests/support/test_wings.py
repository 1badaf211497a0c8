"""Each wing of the C code opens with a README that names its files, and each C file with a comment that names it."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WINGS = sorted(readme.parent for part in ("redis_module", "src") for readme in (REPOSITORY / part).glob("*/README.md"))
MODULE_WINGS = [wing for wing in WINGS if wing.parent.name == "redis_module"]
C_FILES = sorted(
    path for part in ("redis_module", "src", "bridge/native") for path in (REPOSITORY / part).rglob("*.[ch]")
)


def named_in_tables(readme: str) -> set[str]:
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_folder_with_c_files_is_a_wing_with_a_readme() -> None:
    folders = {path.parent for path in C_FILES if path.parent.parent.name in ("redis_module", "src")}
    assert folders == set(WINGS)


@pytest.mark.parametrize("wing", MODULE_WINGS, ids=lambda wing: wing.name)
def test_the_readme_of_a_wing_of_the_module_names_each_of_its_files(wing: Path) -> None:
    readme = (wing / "README.md").read_text()
    headers = set(re.findall(r"`(\w+)\.h`", readme))
    files = {path.stem for path in wing.glob("*.[ch]")}
    assert files - named_in_tables(readme) - headers == set()
    assert named_in_tables(readme) - files == set()


@pytest.mark.parametrize("wing", WINGS, ids=lambda wing: f"{wing.parent.name}-{wing.name}")
def test_the_readme_of_a_wing_says_what_it_may_use_and_what_it_must_not(wing: Path) -> None:
    readme = (wing / "README.md").read_text()
    assert readme.startswith(f"# {wing.name}: ")
    assert "\n- May use: " in readme
    assert "\n- Must not" in readme
    assert [name for name in re.findall(r"`(\w+\.h)`", readme) if not (wing / name).exists()] == []


def test_every_c_file_opens_with_a_comment_that_names_it() -> None:
    assert [str(path) for path in C_FILES if not path.read_text().startswith(f"/* {path.name} - ")] == []
