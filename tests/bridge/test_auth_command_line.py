"""`holdmq-bridge auth`: what it does, prints and returns."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import product, takewhile
from pathlib import Path

import click
import pytest
import redis
from argon2 import PasswordHasher
from click.testing import CliRunner, Result

from holdmq_bridge.__main__ import command
from holdmq_bridge.admin.auth import auth as auth_group
from holdmq_bridge.auth.records import user_key
from tests.support import Server, embedded_kinds, eventually
from tests.support.pages import blocks

server_kinds = embedded_kinds  # what is tested is in the bridge

TIMEOUT_S = 30.0

Auth = Callable[..., Result]


@pytest.fixture
def auth(server: Server) -> Auth:
    """Runs `auth` with words; `typed` is its standard input."""

    def run(*words: str, typed: str = "") -> Result:
        return CliRunner().invoke(
            command, ["auth", "--redis", server.url, *words], input=typed, prog_name="holdmq-bridge"
        )

    return run


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in done(result).splitlines()[1:]]


def start(*words: str, environment: Mapping[str, str] | None = None, typed: bytes = b"") -> tuple[int, str]:
    """The command as a process; its status and all that it printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "holdmq_bridge", *words],
        input=typed, capture_output=True, timeout=TIMEOUT_S, check=False, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    return ended.returncode, (ended.stdout + ended.stderr).decode()


# ---- users -----------------------------------------------------------------------------------------------------------


def test_users_are_added_shown_and_removed(auth: Auth) -> None:
    done(auth("role", "add", "sensors"))
    done(auth("user", "add", "alice", "--role", "sensors", "--client", "a-*", typed="secret\n"))
    done(auth("user", "add", "device", "--no-password", "--disabled"))
    done(auth("user", "add", "root", "--superuser", typed="secret\n"))
    assert rows(auth("user", "list")) == [
        ["alice", "yes", "yes", "no", "sensors", "a-*"],
        ["device", "no", "no", "no", "", ""],
        ["root", "yes", "yes", "yes", "", ""],
    ]
    shown = json.loads(done(auth("--json", "user", "show", "alice")))
    assert shown == {
        "name": "alice", "password": True, "enabled": True, "superuser": False, "roles": "sensors", "clients": "a-*",
        "rules": 0, "session_kind": "", "overflow": "", "quota": "",
    }  # fmt: skip
    done(auth("user", "delete", "alice"))
    assert [row[0] for row in rows(auth("user", "list"))] == ["device", "root"]


def test_each_change_of_a_user_is_stored(auth: Auth) -> None:
    done(auth("user", "add", "u", "--no-password"))
    done(auth("role", "add", "r"))
    for words, column, value in [
        (("disable", "u"), 2, "no"), (("enable", "u"), 2, "yes"), (("superuser", "u", "yes"), 3, "yes"),
        (("superuser", "u", "no"), 3, "no"), (("grant", "u", "r"), 4, "r"), (("revoke", "u", "r"), 4, ""),
        (("clients", "u", "x*", "y"), 5, "x* y"), (("clients", "u"), 5, ""),
    ]:  # fmt: skip
        done(auth("user", *words))
        assert rows(auth("user", "list"))[0][column] == value, words


def test_a_quota_is_changed_bound_by_bound(auth: Auth) -> None:
    def shown() -> str:
        return str(json.loads(done(auth("--json", "user", "show", "u")))["quota"])

    done(auth("user", "add", "u", "--no-password"))
    done(auth("user", "quota", "u", "--sessions", "10", "--queue-bytes", "0"))
    assert shown() == "sessions=10 queue-bytes=0"
    done(auth("user", "quota", "u", "--retained", "5", "--sessions", "default"))
    assert shown() == "queue-bytes=0 retained=5"
    for words in [(), ("--sessions", "-1"), ("--sessions", "many"), ("--retained", str(2**40 + 1))]:
        assert auth("user", "quota", "u", *words).exit_code == 2
    assert shown() == "queue-bytes=0 retained=5"


def test_a_password_is_read_from_standard_input_without_its_line_end(auth: Auth, client: redis.Redis) -> None:
    done(auth("user", "add", "a", typed=" grüße \r\nnext line"))
    PasswordHasher().verify(client.hget(user_key("a"), "password").decode(), " grüße ")  # type: ignore[union-attr]
    done(auth("user", "passwd", "a", typed="new"))
    PasswordHasher().verify(client.hget(user_key("a"), "password").decode(), "new")  # type: ignore[union-attr]
    done(auth("user", "passwd", "a", "--no-password"))
    assert client.hget(user_key("a"), "password") == b""


def test_no_option_takes_a_password(auth: Auth) -> None:
    assert auth("user", "add", "a", "secret").exit_code == 2
    assert auth("user", "add", "a", "--password", "secret").exit_code == 2
    assert auth("user", "passwd", "a", "secret").exit_code == 2


def test_on_a_terminal_the_password_is_asked_for_twice_and_not_shown(server: Server, client: redis.Redis) -> None:
    ours, theirs = pty.openpty()
    words = ["auth", "--redis", server.url, "user", "add", "alice"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdmq_bridge", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        printed = b""
        for asked in (b"Password: ", b"Repeat for confirmation: "):
            while asked not in printed:
                printed += os.read(ours, 1000)
            os.write(ours, b"secret\n")
        assert process.wait(TIMEOUT_S) == 0
    os.close(ours)
    assert b"secret" not in printed
    stored = client.hget(user_key("alice"), "password")
    PasswordHasher().verify(stored.decode(), "secret")  # type: ignore[union-attr]


def test_a_user_without_any_rule_is_pointed_out(auth: Auth) -> None:
    assert "rule add" in auth("user", "add", "a", "--no-password").stderr
    assert auth("user", "add", "root", "--no-password", "--superuser").stderr == ""
    done(auth("rule", "add", "everybody", "allow", "all", "#"))
    assert auth("user", "add", "b", "--no-password").stderr == ""


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_rules_are_added_moved_and_removed(auth: Auth) -> None:
    done(auth("role", "add", "r"))
    for topic_filter in ("a", "b", "c/%c/#"):
        done(auth("rule", "add", "role:r", "allow", "publish", topic_filter))
    done(auth("rule", "add", "role:r", "deny", "all", "first", "--at", "1"))
    listed = [row[2] for row in rows(auth("rule", "list", "role:r"))]
    assert listed == ["deny all first", "allow publish a", "allow publish b", "allow publish c/%c/#"]
    done(auth("rule", "move", "role:r", "4", "2"))
    done(auth("rule", "delete", "role:r", "1"))
    done(auth("rule", "delete", "role:r", "allow", "publish", "b"))
    assert rows(auth("rule", "list")) == [["role:r", "1", "allow publish c/%c/#"], ["role:r", "2", "allow publish a"]]
    assert ["r", "2"] in rows(auth("role", "list"))


def test_everybody_anonymous_and_users_have_rules_too(auth: Auth) -> None:
    done(auth("user", "add", "u", "--no-password"))
    for whose in ("everybody", "anonymous", "user:u"):
        done(auth("rule", "add", whose, "allow", "all", "x"))
        assert rows(auth("rule", "list", whose)) == [[whose, "1", "allow all x"]]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("rule", "add", "sensors", "allow", "all", "x"), "expected role:<name>, user:<name>, everybody or anonymous"),
        (("rule", "add", "everybody", "permit", "all", "x"), "permit"),
        (("rule", "add", "everybody", "allow", "all", "a/#/b"), "a/#/b"),
        (("rule", "add", "everybody", "allow", "all", "a/%x"), "%x"),
        (("rule", "add", "everybody", "allow", "all", "x", "--at", "0"), "0"),
        (("rule", "delete", "everybody", "nonsense"), "nonsense"),
        (("user", "add", "a\nb", "--no-password"), "control"),
        (("user", "add", "a", "--no-password", "--role", "everybody"), "everybody"),
        (("user", "add", "a"), "password of 0 bytes"),
        (("check", "c", "-", "publish", "a/+"), "wildcard"),
        (("import", "-"), "no JSON"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_words_are_named_and_end_with_2(
    auth: Auth, client: redis.Redis, words: tuple[str, ...], named: str
) -> None:
    result = auth(*words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert client.dbsize() == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("user", "add", "u", "--no-password"), "already"),
        (("user", "add", "v", "--no-password", "--role", "q"), "'q'"),
        (("user", "delete", "v"), "'v'"), (("user", "show", "v"), "'v'"), (("user", "enable", "v"), "'v'"),
        (("user", "passwd", "v"), "'v'"), (("user", "revoke", "u", "q"), "'q'"), (("user", "grant", "u", "q"), "'q'"),
        (("role", "add", "everybody"), "everybody"), (("role", "delete", "q"), "'q'"), (("role", "delete", "r"), "'u'"),
        (("rule", "add", "role:q", "allow", "all", "x"), "'q'"),
        (("rule", "add", "role:r", "allow", "all", "a"), "number 1"),
        (("rule", "delete", "role:r", "2"), "expected 1 to 1"),
        (("rule", "move", "role:r", "1", "2"), "expected 1 to 1"),
        (("rule", "delete", "role:r", "allow", "all", "b"), "allow all b"),
        (("block", "delete", "c"), "'c'"), (("check", "c", "v", "publish", "a"), "'v'"),
        (("import", "/nonexistent/file"), "/nonexistent/file"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_and_ends_with_1(auth: Auth, words: tuple[str, ...], named: str) -> None:
    done(auth("role", "add", "r"))
    done(auth("rule", "add", "role:r", "allow", "all", "a"))
    done(auth("user", "add", "u", "--no-password", "--role", "r"))
    before = done(auth("export"))
    result = auth(*words)
    assert result.exit_code == 1
    assert named in result.stderr
    assert done(auth("export")) == before


# ---- check, block, export --------------------------------------------------------------------------------------------


def test_check_names_the_rule_that_decides(auth: Auth) -> None:
    done(auth("role", "add", "r"))
    done(auth("rule", "add", "role:r", "allow", "publish", "dev/%c/#"))
    done(auth("rule", "add", "everybody", "deny", "subscribe", "secret/#"))
    done(auth("rule", "add", "everybody", "allow", "subscribe", "#"))
    done(auth("user", "add", "u", "--no-password", "--role", "r", "--client", "c*"))
    done(auth("user", "add", "root", "--no-password", "--superuser"))
    done(auth("block", "add", "cx", "--why", "lost"))
    for words, status, because in [
        (("c1", "u", "publish", "dev/c1/t"), 0, "rule 1 of role r: allow publish dev/%c/# (here: dev/c1/#)"),
        (("c1", "u", "publish", "dev/c2/t"), 1, "no rule applies"),
        (("c1", "u", "subscribe", "$share/g/secret/x"), 1, "rule 1 of role everybody: deny subscribe secret/#"),
        (("c1", "u", "subscribe", "+/x"), 1, "rule 1 of role everybody: deny subscribe secret/#"),
        (("c1", "-", "subscribe", "open/#"), 0, "rule 2 of role everybody: allow subscribe #"),
        (("c+", "u", "publish", "dev/cp/t"), 1, "no rule applies"),
        (("any", "root", "publish", "$SYS/x"), 0, "the user is a superuser"),
        (("d1", "u", "publish", "dev/d1/t"), 1, "the user may not use this client id, only c*"),
        (("cx", "root", "publish", "a"), 1, "the client id is blocked"),
    ]:
        result = auth("--json", "check", *words)
        assert (result.exit_code, json.loads(result.stdout)) == (status, {"allowed": status == 0, "because": because})
    done(auth("user", "disable", "root"))
    assert "disabled" in auth("check", "any", "root", "publish", "a").stdout


def test_as_long_as_nothing_is_stored_everything_is_allowed(auth: Auth) -> None:
    assert "neither users nor rules" in done(auth("check", "c", "-", "publish", "a"))
    assert "neither users nor rules" in done(auth("check", "c", "-", "subscribe", "$SYS/#"))
    refused = auth("check", "c", "-", "publish", "$SYS/broker/version")  # but to speak for the server
    assert (refused.exit_code, "deny publish $SYS/#" in refused.stdout) == (1, True)


def test_clients_are_blocked_and_unblocked(auth: Auth) -> None:
    done(auth("block", "add", "thief-*", "--why", "stolen"))
    done(auth("block", "add", "a"))
    assert rows(auth("block", "list")) == [["a", ""], ["thief-*", "stolen"]]
    done(auth("block", "delete", "a"))
    assert rows(auth("block", "list")) == [["thief-*", "stolen"]]


def test_what_was_exported_is_imported(auth: Auth, client: redis.Redis, tmp_path: Path) -> None:
    done(auth("role", "add", "r"))
    done(auth("user", "add", "u", "--role", "r", typed="pw\n"))
    text = done(auth("export"))
    client.flushall()
    file = tmp_path / "access.json"
    file.write_text(text)
    assert json.loads(done(auth("--json", "import", str(file)))) == {"users": 1, "roles": 1, "blocked": 0}
    assert done(auth("export")) == text
    done(auth("user", "add", "v", "--no-password"))
    done(auth("import", "-", "--replace", typed=text))
    assert done(auth("export")) == text


def test_an_announcement_is_a_new_version(auth: Auth, client: redis.Redis) -> None:
    done(auth("announce"))
    first = client.get("{holdmq:auth}:version")
    done(auth("announce"))
    assert first != client.get("{holdmq:auth}:version")


# ---- the server ------------------------------------------------------------------------------------------------------


def test_the_server_is_found_like_the_bridges(server: Server) -> None:
    for words, environment in [
        (["auth", "--redis", server.url], {}),
        (["--redis", server.url, "auth"], {}),
        (["auth"], {"HOLDMQ_BRIDGE_REDIS": server.url}),
    ]:
        assert start(*words, "user", "list", environment=environment) == (
            0,
            "name\tpassword\tenabled\tsuperuser\troles\tclients\n",
        )


@pytest.mark.parametrize("words", ["user list", "role list", "rule list everybody", "block list"])
def test_a_list_that_cannot_be_read_prints_nothing(words: str) -> None:
    outcome = CliRunner().invoke(command, ["auth", "--redis", "redis://127.0.0.1:1", *words.split()])
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "127.0.0.1:1" in outcome.stderr


def test_a_server_that_is_not_there_or_refuses_ends_with_1_and_a_bad_url_with_2(server: Server) -> None:
    status, printed = start("auth", "--redis", "redis://127.0.0.1:1", "user", "list")
    assert status == 1
    assert "127.0.0.1:1" in printed
    status, printed = start("auth", "--redis", "http://127.0.0.1", "user", "list")
    assert status == 2
    assert "--redis" in printed
    server.client().execute_command("ACL", "SETUSER", "reader", "on", ">pw", "+@read", "+ping", "~*")
    url = server.url.replace("redis://", "redis://reader:pw@")
    status, printed = start("auth", "--redis", url, "role", "add", "r")
    assert status == 1
    assert "permission" in printed
    assert "Traceback" not in printed


def test_a_full_server_keeps_what_was_there(server: Server, auth: Auth) -> None:
    done(auth("role", "add", "r"))
    before = done(auth("export"))
    client = server.client()
    client.config_set("maxmemory", 1)
    result = auth("role", "add", "s")
    client.config_set("maxmemory", 0)
    assert result.exit_code == 1
    assert "OOM" in result.stderr or "maxmemory" in result.stderr
    eventually(lambda: done(auth("export")) == before)


# ---- the page --------------------------------------------------------------------------------------------------------


def typed_as_on_the_page() -> set[str]:
    """The names of the commands in the page's list: `user passwd|delete NAME` are two."""
    [block] = blocks("docs/mqtt-access.md", "text commands")
    found: set[str] = set()
    for words in (one.split()[1:] for one in re.split(r"\n| {2,}", block.text) if one.startswith("auth ")):
        names = [word.split("|") for word in takewhile(lambda word: word[0].islower(), words)][:2]
        found |= {" ".join(chosen) for chosen in product(*names)}
    return found


def test_the_page_lists_the_commands_that_there_are() -> None:
    there = set()
    for name, inner in auth_group.commands.items():
        there |= {f"{name} {leaf}" for leaf in inner.commands} if isinstance(inner, click.Group) else {name}
    assert typed_as_on_the_page() == there
