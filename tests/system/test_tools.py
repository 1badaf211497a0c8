"""The scripts behind `make test` and `make lint`.

Missing packages are named once and together; a part that fails stops no other; files that depend on each other are
found, as are broken links of the site that `make docs` builds.
"""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import all_blocks
from tools import check_site, circles

REPOSITORY = Path(__file__).parents[2]
# What the scripts themselves need.
UTILITIES = ("bash", "dirname", "grep", "sed", "xargs", "echo", "env", "find", "flock", "mkdir", "nproc")
BASH = "/bin/bash"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """A folder of programs, as PATH: an ordinary user's machine without anything that HoldMQ needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in UTILITIES:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    program(folder, "id", "echo 1000")
    program(folder, "ldconfig", "true")
    return folder


def needed(machine: Path, *needs: str, java_home: Path | str = "") -> "subprocess.CompletedProcess[str]":
    script = (REPOSITORY / "tools" / "needed.sh").read_text().replace("PATH=$PATH:/usr/sbin:/sbin\n", "")
    tools = machine.parent / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "needed.sh").write_text(script)
    shutil.copy(REPOSITORY / "tools" / "system-packages.sh", tools)
    environment = {"PATH": str(machine), "JAVA_HOME": str(java_home)}
    return subprocess.run(
        [BASH, tools / "needed.sh", *needs], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_an_ordinary_user_is_told_all_missing_packages_in_one_line(bare_machine: Path) -> None:
    done = needed(bare_machine, "build", "test")
    assert done.returncode == 1
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) == 1
    before, _, packages = lines[0].partition("sudo apt-get install ")
    assert "Missing Debian packages" in before
    expected = "gcc libc6-dev python3 python3-venv python3-dev redis-tools mosquitto-clients mosquitto nodejs npm"
    assert packages.split() == [*expected.split(), "libjemalloc2", "systemd"]


@pytest.mark.parametrize("target", ["demo", "run", "test"])
def test_make_names_what_is_missing_before_it_builds_anything(bare_machine: Path, target: str) -> None:
    copy = bare_machine.parent / "a copy"
    copy.mkdir()
    for name in ("Makefile", "tools", "redis_module", "src", "pyclient", "bridge"):
        (copy / name).symlink_to(REPOSITORY / name)
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run(
        [make, target],
        env={"PATH": str(bare_machine)},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    told, *rest = (done.stdout + done.stderr).splitlines()
    assert "sudo apt-get install gcc libc6-dev python3 python3-venv python3-dev" in told
    assert all(line.startswith("make") for line in rest), rest


def test_what_is_installed_is_not_named(bare_machine: Path) -> None:
    for name in ("node", "npm", "mosquitto"):
        program(bare_machine, name, "true")
    done = needed(bare_machine, "node", "npm", "mosquitto")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_installed_is_found_in_a_long_list(bare_machine: Path) -> None:
    # A grep that leaves early would break the pipe of who writes on, and that failure would count.
    after = "for ((i = 0; i < 20000; i++)); do echo another line; done"
    program(bare_machine, "ldconfig", f"echo libjemalloc.so.2\n{after}")
    home = bare_machine.parent / "java"
    (home / "bin").mkdir(parents=True)
    program(home / "bin", "java", f"echo 'version \"17.0.1\"' >&2\n{after}")
    done = needed(bare_machine, "jemalloc", "java", java_home=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_need_that_is_not_in_the_table_is_an_error_that_names_it(bare_machine: Path) -> None:
    done = needed(bare_machine, "coffee")
    assert done.returncode == 2
    assert "coffee" in done.stderr


def parts(folder: Path, *targets: str) -> "subprocess.CompletedProcess[str]":
    (folder / "Makefile").write_text("good:\n\t@echo done\nbad:\n\t@exit 3\nlast:\n\t@echo done, too\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        [BASH, REPOSITORY / "tools" / "parts.sh", *targets],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_parts_after_one_that_fails_run_and_the_end_sums_up(tmp_path: Path) -> None:
    done = parts(tmp_path, "bad", "good", "last")
    assert done.returncode == 1
    assert "done, too" in done.stdout
    summary = done.stdout[done.stdout.index("=== 2 of 3 parts passed") :].splitlines()[1:]
    assert [line.split()[:2] for line in summary] == [["make", "bad"], ["make", "good"], ["make", "last"]]
    assert ["failed" in line for line in summary] == [True, False, False]


def test_parts_that_all_pass_are_a_success(tmp_path: Path) -> None:
    done = parts(tmp_path, "good", "last")
    assert done.returncode == 0
    assert "=== 2 of 2 parts passed" in done.stdout


@pytest.fixture
def logging_make(tmp_path: Path) -> Path:
    """In the place of make: notes its targets; the pipeline's tests fail, and the demo takes a second and more."""
    name = "make-that-logs"
    targets = f'echo "$@" >>"{tmp_path}/targets"'
    program(tmp_path, name, f'{targets}\ncase "$*" in *test-pipeline*) exit 2 ;; *demo*) sleep 1.2 ;; esac')
    return tmp_path / name


def test_make_test_continues_after_a_part_that_fails(logging_make: Path) -> None:
    make = shutil.which("make")
    assert make is not None
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        [make, "test", f"MAKE={logging_make}", "TESTS=tests"],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    targets = (logging_make.parent / "targets").read_text().splitlines()
    assert [line.split()[-1] for line in targets] == ["test-pipeline", "test-rest"], done.stdout + done.stderr
    assert "=== 1 of 2 parts passed" in done.stdout


@pytest.mark.parametrize(("most_s", "is_quick"), [("60", True), ("0", False)])
def test_a_demo_that_takes_too_long_is_an_error(logging_make: Path, most_s: str, is_quick: bool) -> None:
    tree = logging_make.parent / "tree"
    (tree / "tools").mkdir(parents=True)
    shutil.copy(REPOSITORY / "tools" / "elsewhere.sh", tree / "tools")
    subprocess.run(["git", "init", "--quiet", tree], check=True)  # noqa: S607 - whichever is there
    done = subprocess.run(
        [BASH, tree / "tools" / "elsewhere.sh", "demo", "lint"],
        env={**os.environ, "MAKE": str(logging_make), "DEMO_MOST_S": most_s},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    targets = [line.split()[-1] for line in (logging_make.parent / "targets").read_text().splitlines()]
    assert targets == (["demo", "lint"] if is_quick else ["demo"])
    assert done.returncode == (0 if is_quick else 1)
    assert ("at most 0 expected" in done.stderr) != is_quick


def dry_run(folder: Path, *words: str) -> str:
    """What make would do in a new copy."""
    for name in ("Makefile", "tools", "redis_module", "src", "pyclient", "bridge", "pyproject.toml", "setup.py"):
        (folder / name).symlink_to(REPOSITORY / name)
    for lock in REPOSITORY.glob("requirements*.lock"):
        (folder / lock.name).symlink_to(lock)
    done = subprocess.run(
        ["make", "--dry-run", *words],  # noqa: S607 - whichever is there
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("target", "used", "unused"), [("demo", "build/demo/", "build/obj/"), ("run", "build/obj/", "build/demo/")]
)
def test_the_demo_builds_quickly_in_a_folder_of_its_own_and_what_runs_later_is_optimized(
    tmp_path: Path, target: str, used: str, unused: str
) -> None:
    printed = dry_run(tmp_path, target)
    assert f"-o {used}" in printed
    assert f"-o {unused}" not in printed
    assert ("_core.*.so" in printed) == (target == "run")


def test_the_demo_installs_a_part_of_what_the_tests_need_and_the_same_versions(tmp_path: Path) -> None:
    printed = dry_run(tmp_path, "demo")
    installed = [word for word in printed.split() if word.endswith(".lock")]
    assert installed == ["requirements-demo.lock"], printed
    pinned, all_pinned = ((REPOSITORY / name).read_text() for name in ("requirements-demo.lock", "requirements.lock"))
    versions = {line for line in pinned.splitlines() if "==" in line}
    assert versions
    assert versions < set(all_pinned.splitlines())


def test_the_packages_of_the_readme_are_those_that_the_build_needs(bare_machine: Path) -> None:
    named = needed(bare_machine, "build").stdout + needed(bare_machine, "build").stderr
    packages = named.partition("sudo apt-get install ")[2].split()
    [block] = [one for one in all_blocks("README.md") if one.text.startswith("sudo apt-get install")]
    assert block.text.split()[3:] == ["make", *packages]


# --- Circles ----------------------------------------------------------------------------------------------------------


def test_files_that_need_each_other_are_found_also_over_others_and_for_types_alone(tmp_path: Path) -> None:
    package = tmp_path / "pyclient" / "p"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from p.a import x\n")
    (package / "a.py").write_text("from p import b\n")
    (package / "b.py").write_text("import p.c\n")
    (package / "c.py").write_text("if TYPE_CHECKING:\n    from p.a import x\n")
    (package / "d.py").write_text("def f():\n    from p.c import y\n")
    assert circles.circles(circles.python_graph(tmp_path)) == [[f"pyclient/p/{name}.py" for name in "abc"]]


def test_c_files_that_include_or_use_each_other_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    for name, other in (("a", "b"), ("b", "a")):
        (folder / f"{name}.h").write_text(f"int {name}(void);\n")
        (folder / f"{name}.c").write_text(f"int {other}(void);\nint {name}(void) {{ return {other}(); }}\n")
        target = tmp_path / "objects" / "src" / f"{name}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["/usr/bin/gcc", "-c", folder / f"{name}.c", "-o", target], check=True)
    assert circles.circles(circles.include_graph(tmp_path)) == []
    assert circles.circles(circles.symbol_graph(tmp_path, [tmp_path / "objects"])) == [["src/a.c", "src/b.c"]]
    (folder / "a.h").write_text('#include "b.h"\n')
    (folder / "b.h").write_text('#include "a.h"\n')
    assert circles.circles(circles.include_graph(tmp_path)) == [["src/a.h", "src/b.h"]]


def test_an_inline_function_and_a_macro_use_what_they_call(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    target = tmp_path / "objects" / "src" / "a.o"
    target.parent.mkdir(parents=True)
    (folder / "a.h").write_text("int a(void);\n")
    (folder / "a.c").write_text('#include "b.h"\nint a(void) { return 1; }\n')

    def found(header: str) -> list[list[str]]:
        (folder / "b.h").write_text(f'#include "a.h"\n{header}\n')
        subprocess.run(["/usr/bin/gcc", "-c", folder / "a.c", "-o", target], check=True)
        graph = circles.symbol_graph(tmp_path, [tmp_path / "objects"])
        return circles.circles(circles.both(circles.include_graph(tmp_path), graph))

    assert found("static inline int b(void) { if (1) { return a(); } return 0; }") == [["src/a.c", "src/b.h"]]
    assert found("#define B \\\n    a()") == [["src/a.c", "src/b.h"]]
    assert found("int b(int a); /* { a() } */") == []
    assert found("struct b { int a; };\nstatic inline int b(struct b *b) { return b->a; }") == []


def test_a_wing_may_use_those_below_it_alone(tmp_path: Path) -> None:
    for name in (
        "src/base/a.h",
        "src/topic/b.h",
        "redis_module/server/c.h",
        "redis_module/queue/d.h",
        "redis_module/e.h",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "redis_module/e.h").write_text('#include "queue/d.h"\n')
    (tmp_path / "redis_module/queue/d.h").write_text('#include "server/c.h"\n#include "topic/b.h"\n')
    (tmp_path / "src/topic/b.h").write_text('#include "base/a.h"\n')
    assert circles.wrong_ways(circles.include_graph(tmp_path)) == []
    (tmp_path / "src/base/a.h").write_text('#include "topic/b.h"\n#include "server/c.h"\n')
    (tmp_path / "redis_module/server/c.h").write_text('#include "queue/d.h"\n')
    assert [fault.partition(";")[0] for fault in circles.wrong_ways(circles.include_graph(tmp_path))] == [
        "redis_module/server/c.h uses redis_module/queue/d.h",
        "src/base/a.h uses redis_module/server/c.h",
        "src/base/a.h uses src/topic/b.h",
    ]


def test_a_wing_of_the_bridge_may_use_those_that_it_names_alone(tmp_path: Path) -> None:
    imports = {
        "base/a": "holdmq.commands",
        "server/b": "holdmq_bridge.base.a",
        "session/c": "holdmq_bridge.base.a",
        "serve": "holdmq_bridge.base.a",
    }

    def written(**more: str) -> list[str]:
        for name, imported in (imports | {name.replace("_", "/"): value for name, value in more.items()}).items():
            path = tmp_path / f"bridge/holdmq_bridge/{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"if TYPE_CHECKING:\n    import {imported}\n")
        return [fault.partition(";")[0] for fault in circles.wrong_ways(circles.python_graph(tmp_path))]

    (tmp_path / "pyclient" / "holdmq").mkdir(parents=True)
    (tmp_path / "pyclient" / "holdmq" / "commands.py").write_text("")
    part = "bridge/holdmq_bridge"
    assert written() == []
    assert written(session_c="holdmq_bridge.server.b") == [f"{part}/session/c.py uses {part}/server/b.py"]
    assert written(base_a="holdmq_bridge.serve", other_d="holdmq_bridge.base.a") == [
        f"{part}/base/a.py uses {part}/serve.py",
        f"{part}/other/d.py uses {part}/base/a.py",
    ]


def test_a_header_that_core_and_module_both_have_is_found(tmp_path: Path) -> None:
    for name in ("src/history/one.h", "redis_module/history/two.h"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    assert circles.ambiguous(tmp_path) == []
    (tmp_path / "redis_module/history/one.h").write_text("")
    assert circles.ambiguous(tmp_path) == ["history/one.h is a header of src and of redis_module"]


def test_the_circle_check_passes_for_the_tree_as_it_is() -> None:
    assert circles.ambiguous(circles.REPOSITORY) == []
    for graph in (circles.include_graph(circles.REPOSITORY), circles.python_graph(circles.REPOSITORY)):
        assert circles.circles(graph) == []
        assert circles.wrong_ways(graph) == []


# --- The site ---------------------------------------------------------------------------------------------------------


def test_links_anchors_and_foreign_hosts_of_a_site_are_checked(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "docs").mkdir(parents=True)
    (site / "style.css").write_text("a { color: red } @import 'https://fonts.example/a.css';")
    (site / "docs" / "other.html").write_text('<h2 id="here">Here</h2><a href="https://example.org/">allowed</a>')
    (site / "index.html").write_text(
        '<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://example.org/">'
        '<script src="//cdn.example/x.js"></script><img src="data:image/png;base64,AA==">'
        '<a href="docs/other.html">right</a><a href="docs/other.html#here">right</a><a href="#nowhere">wrong</a>'
        '<a href="docs/gone.html">wrong</a><a href="docs/other.html#there">wrong</a>'
    )
    assert sorted(check_site.faults(site)) == [
        "index.html links to #nowhere, which has no such anchor",
        "index.html links to docs/gone.html, which does not exist",
        "index.html links to docs/other.html#there, which has no such anchor",
        "index.html loads //cdn.example/x.js from another host",
        "style.css loads https://fonts.example/a.css from another host",
    ]
    assert check_site.main([str(site)]) == 1


def test_a_site_without_faults_passes_and_an_empty_one_does_not(tmp_path: Path) -> None:
    assert check_site.faults(tmp_path) == [f"{tmp_path} has no page"]
    (tmp_path / "index.html").write_text('<a id="a" href="#a">self</a>')
    assert check_site.main([str(tmp_path)]) == 0
