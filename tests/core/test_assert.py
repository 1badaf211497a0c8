"""src/base/assert.h: an invariant that does not hold ends a build with HMQ_ASSERT, and costs another build nothing."""

import subprocess
from pathlib import Path

import pytest

from tests.support.pages import REPOSITORY

SOURCE = r"""
#include <stdbool.h>
#include <stdio.h>

#include "base/assert.h"

static int looks;

static bool holds(int number) {
    looks++;
    return number == 1;
}

int main(int argc, char **argv) {
    (void)argv;
    hmq_assert(holds(argc));
    printf("%d\n", looks);
    return 0;
}
"""


def run(tmp_path: Path, flags: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    source, program = tmp_path / "asserts.c", tmp_path / "asserts"
    source.write_text(SOURCE, encoding="utf-8")
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{REPOSITORY / 'src'}", *flags]
    subprocess.run([*command, "-o", str(program), str(source)], check=True)
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("flags", "looks"), [([], "0\n"), (["-DHMQ_ASSERT"], "1\n")])
def test_an_invariant_that_holds_is_looked_at_only_with_assertions(
    tmp_path: Path, flags: list[str], looks: str
) -> None:
    outcome = run(tmp_path, flags)
    assert (outcome.returncode, outcome.stdout) == (0, looks)


def test_an_invariant_that_does_not_hold_ends_the_process_and_is_named(tmp_path: Path) -> None:
    assert run(tmp_path, [], "more").returncode == 0
    outcome = run(tmp_path, ["-DHMQ_ASSERT"], "more")
    assert outcome.returncode < 0
    assert outcome.stderr.endswith("does not hold: holds(argc)\n")


def test_the_sanitized_builds_have_assertions() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    sanitized = [
        line for line in makefile.splitlines() if "$(SANITIZE)" in line and (" -c " in line or "CFLAGS=" in line)
    ]
    assert len(sanitized) == 2
    assert all("-DHMQ_ASSERT" in line for line in sanitized)
