"""Who may look and who may change: logins, cookies, CSRF, tokens, and what is written down."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import redis
from click.testing import CliRunner

from holdmq import HoldMQ, Message
from holdmq.cli import main
from holdmq_bridge.auth.passwords import hash_password
from holdmq_console.keys import AUDIT, SIGNING_KEY, TOKENS
from tests.console.support import API, PASSWORD, PASSWORD_HASH, Api, ConsoleProcess, add_user
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds
Connect = Callable[..., Api]


def audited(client: redis.Redis) -> list[dict[str, str]]:
    entries: Any = client.xrange(AUDIT)
    return [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in entries]


def test_without_users_whoever_reaches_a_local_console_may_do_everything(api: Api) -> None:
    assert api.get("/me") == {"name": "(local)", "rights": ["view", "payloads", "admin"], "via": "local"}


def test_the_first_user_ends_that(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann")
    assert "log in" in api.get("/me", 401)["detail"]
    answer = api.http.get("/sessions?prefix=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fsessions%3Fprefix%3Da")


def test_so_does_the_first_rule(api: Api, client: redis.Redis) -> None:
    store = add_user(client, "ann", "admin")
    store.delete_user("ann")
    assert api.get("/me")["via"] == "local"
    client.hset("{holdmq:auth}:roles", "everybody", "allow all #")
    api.get("/me", 401)


def test_the_console_makes_no_first_user_who_could_not_log_in(api: Api) -> None:
    refused = api.ask("POST", "/users", 409, json={"name": "ann", "password": "x"})
    assert refused["errors"][0]["field"] == "roles"
    api.ask("POST", "/users", 201, json={"name": "ann", "password": PASSWORD, "roles": ["admin"]})
    api.get("/me", 401)
    api.log_in("ann")
    assert api.get("/me") == {"name": "ann", "rights": ["view", "admin"], "via": "session"}


def test_it_does_not_listen_beyond_loopback_without_users(server: Server) -> None:
    done = CliRunner().invoke(main, ["--url", server.url, "console", "--host", "0.0.0.0", "--port", "0"])  # noqa: S104
    assert done.exit_code == 1
    assert "only if there are users" in done.output
    for words in (("--allowed-hosts", "console.example.org"), ("--trusted-proxies", "127.0.0.1")):
        done = CliRunner().invoke(main, ["--url", server.url, "console", "--port", "0", *words])
        assert done.exit_code == 1, words
        assert "only if there are users" in done.output


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Real-IP", "Via"]
)
def test_a_request_that_came_by_a_proxy_is_not_local(connect: Connect, header: str) -> None:
    connect(**{header: "192.0.2.7"}).get("/me", 401)
    assert connect().get("/me")["via"] == "local"


def test_a_proxy_that_is_not_an_address_is_refused(server: Server) -> None:
    words = ["--url", server.url, "console", "--port", "0", "--trusted-proxies", "127.0.0.1,everybody"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "'everybody'; expected an address or a network" in done.output


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (("viewer",), ["view"]),
        (("viewer", "payloads"), ["view", "payloads"]),
        (("admin",), ["view", "admin"]),
        (("admin", "payloads"), ["view", "payloads", "admin"]),
    ],
)
def test_rights_follow_the_roles(api: Api, client: redis.Redis, roles: tuple[str, ...], rights: list[str]) -> None:
    add_user(client, "ann", *roles)
    api.log_in("ann")
    assert api.get("/me")["rights"] == rights


@pytest.mark.parametrize("roles", [(), ("payloads",), ("sensor",)])
def test_a_user_without_a_role_of_the_console_is_refused(api: Api, client: redis.Redis, roles: tuple[str, ...]) -> None:
    add_user(client, "ann", *roles, superuser=True)
    assert "neither role of the console" in api.log_in("ann", status=403).text


def test_a_wrong_password_and_an_unknown_user_look_alike(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "admin")
    wrong, unknown = api.log_in("ann", "wrong", 401), api.log_in("nobody", "wrong", 401)
    assert "user or password is wrong" in wrong.text
    assert wrong.text == unknown.text
    assert "set-cookie" not in wrong.headers


def test_a_disabled_user_and_one_without_a_password_are_refused(api: Api, client: redis.Redis) -> None:
    store = add_user(client, "ann", "admin", enabled=False)
    api.log_in("ann", status=401)
    store.change_user("ann", lambda user: replace(user, enabled=True, password=""))
    api.log_in("ann", "", status=401)


def test_guessing_is_slowed_down_and_the_right_password_does_not_help(
    client: redis.Redis, new_console: Callable[..., ConsoleProcess]
) -> None:
    add_user(client, "ann", "admin")
    add_user(client, "bob", "admin")
    api = Api(new_console(login_free_failures=2, login_address_failures=6))
    for _ in range(3):
        api.log_in("ann", "wrong", 401)
    refused = api.log_in("ann", status=429)
    assert int(refused.headers["retry-after"]) >= 1
    assert audited(client) == []
    api.log_in("bob")
    for number in range(3):  # an address cannot guess for many users
        api.log_in(f"user-{number}", "wrong", 401)
    api.log_in("bob", status=429)
    api.http.close()


def test_the_cookie_is_for_this_site_and_not_for_scripts(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "viewer")
    cookie = api.log_in("ann").headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"))


def test_who_asks_for_a_long_address_is_led_to_the_login(api: Api, client: redis.Redis) -> None:
    add_user(client, "root", "admin")
    answer = api.http.get(f"/sessions?cursor={'A' * 20_000}", follow_redirects=True)
    assert answer.status_code == 200
    assert answer.url.path == "/login"


def test_a_login_leads_nowhere_else(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "viewer")
    for path in ("https://elsewhere.example/", "//elsewhere.example/", "/\\elsewhere.example/"):
        answer = api.http.post("/login", data={"user": "ann", "password": PASSWORD, "next": path})
        assert answer.headers["location"] == "/"


def test_a_changed_cookie_is_invalid(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "viewer")
    add_user(client, "bob", "admin")
    api.log_in("ann")
    cookie = api.http.cookies["holdmq_console"]
    for forged in (
        cookie[:-2] + ("yy" if cookie.endswith("xx") else "xx"),
        cookie.partition(".")[0],
        "." + cookie,
        "x.y",
        "ä",
        "a" * 5000,
    ):
        answer = httpx.get(f"{api.http.base_url}/api/v1/me", headers={b"Cookie": f"holdmq_console={forged}".encode()})
        assert answer.status_code == 401, forged


def end_by_password(client: redis.Redis, _api: Api) -> None:
    other = hash_password(b"another")
    add_user(client, "eve", "admin").change_user("ann", lambda user: replace(user, password=other))


def end_by_disabling(client: redis.Redis, _api: Api) -> None:
    add_user(client, "eve", "admin").change_user("ann", lambda user: replace(user, enabled=False))


def end_by_removal(client: redis.Redis, _api: Api) -> None:
    add_user(client, "eve", "admin").delete_user("ann")


def end_by_logout(_client: redis.Redis, api: Api) -> None:
    cookie = api.http.cookies["holdmq_console"]
    assert api.http.post("/logout", data={"csrf": api.csrf()}).status_code == 303
    api.http.cookies.set("holdmq_console", cookie, domain="127.0.0.1")  # somebody has kept it


@pytest.mark.parametrize("end", [end_by_password, end_by_disabling, end_by_removal, end_by_logout])
def test_a_login_ends(api: Api, client: redis.Redis, end: Callable[[redis.Redis, Api], None]) -> None:
    add_user(client, "ann", "admin")
    api.log_in("ann")
    assert api.get("/me")["name"] == "ann"
    end(client, api)
    api.get("/me", 401)


def test_deleting_the_key_ends_all_logins_of_new_processes(
    api: Api, client: redis.Redis, new_console: Callable[..., ConsoleProcess]
) -> None:
    add_user(client, "ann", "admin")
    api.log_in("ann")
    other = Api(new_console())
    other.http.cookies = api.http.cookies
    assert other.get("/me")["name"] == "ann"
    client.delete(SIGNING_KEY)
    third = Api(new_console())
    third.http.cookies = api.http.cookies
    third.get("/me", 401)
    other.http.close()
    third.http.close()


def test_a_change_by_cookie_needs_the_csrf_token(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    add_user(client, "ann", "admin")
    hold.session("c1").open("owner", expiry=60)
    api.log_in("ann")
    token = api.http.headers.pop("X-CSRF-Token")
    for wrong in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": ("y" if token[0] == "x" else "x") + token[1:]}):
        refused = api.ask("DELETE", "/sessions/c1", 403, headers=wrong)
        assert "CSRF" in refused["detail"]
    assert hold.session("c1").info().exists
    api.ask("DELETE", "/sessions/c1", headers={"X-CSRF-Token": token})
    assert not hold.session("c1").info().exists


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://elsewhere.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_a_page_of_another_site_changes_nothing(api: Api, hold: HoldMQ, headers: dict[str, str]) -> None:
    hold.session("c1").open("owner", expiry=60)
    api.ask("DELETE", "/sessions/c1", 403, headers=headers)
    assert hold.session("c1").info().exists
    assert api.http.post("/sessions/c1/drop", headers=headers).status_code == 403
    assert hold.session("c1").info().exists


def test_another_host_is_not_served(api: Api) -> None:
    api.get("/me", 421, headers={"Host": "rebound.example"})
    assert api.http.get("/login", headers={"Host": "rebound.example:8080"}).status_code == 421
    assert api.http.get("/api/v1/me", headers={"Host": "localhost:1"}).status_code == 200


def test_a_viewer_changes_nothing_and_reads_no_payload(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    add_user(client, "ann", "viewer")
    hold.session("c1").open("owner", expiry=60)
    hold.session("c1").deliver(Message(topic="a/b", payload=b"secret", qos=1))
    hold.topics.publish("kept/1", b"secret", retain=True)
    hold.channel("news").publish(b"secret")
    api.log_in("ann")
    (item,) = api.get("/sessions/c1/queue")["items"]
    assert (item["message"]["topic"], item["message"]["payload"]["size"]) == ("a/b", 6)
    for path in ("/sessions/c1/queue", "/topics/retained", "/channels/news", "/channels/news/messages"):
        assert "secret" not in str(api.get(path)), path
    assert "payloads" in api.get("/sessions/c1/queue/1", 403)["detail"]
    for page in ("/sessions/c1/queue", "/topics?filter=%23", "/channels?name=news"):
        assert "secret" not in api.http.get(page).text
    for method, path, body in (
        ("DELETE", "/sessions/c1", None),
        ("DELETE", "/sessions/c1/queue", None),
        ("DELETE", "/sessions/c1/queue/1", None),
        ("POST", "/sessions/c1/queue/move", {"to_topic": "x"}),
        ("POST", "/sessions/c1/kick", {}),
        ("POST", "/topics/publish", {"topic": "x"}),
        ("DELETE", "/topics/kept%2F1/retained", None),
        ("DELETE", "/channels/news/messages", None),
        ("POST", "/users", {"name": "x"}),
        ("PATCH", "/users/ann", {"superuser": True}),
        ("DELETE", "/users/ann", None),
        ("PUT", "/roles/everybody", {"rules": []}),
        ("PUT", "/bans/x", {}),
        ("GET", "/audit", None),
    ):
        api.ask(method, path, 403, json=body)
    assert hold.session("c1").info().messages == 1
    assert [entry["what"] for entry in audited(client)] == ["login"]


def test_an_administrator_without_the_right_moves_no_payloads(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    add_user(client, "ann", "admin")
    hold.session("c1").deliver(Message(topic="a", payload=b"secret", qos=1))
    api.log_in("ann")
    refused = api.ask("POST", "/sessions/c1/queue/move", 403, json={"to_topic": "mine"})
    assert "payloads" in refused["detail"]


def test_a_token_can_what_it_was_given_until_it_is_revoked(api: Api, connect: Connect, client: redis.Redis) -> None:
    add_user(client, "ann", "admin")
    api.log_in("ann")
    made = api.ask("POST", "/tokens", 201, json={"name": "script", "rights": ["view"]})
    script = connect(Authorization=f"Bearer {made['token']}")
    assert script.get("/me") == {"name": "ann", "rights": ["view"], "via": "token"}
    script.ask("PUT", "/bans/x", 403, json={})
    script.ask("POST", "/tokens", 409, json={"name": "child"})
    assert made["token"] not in str(client.hgetall(TOKENS))
    assert [one["name"] for one in api.get("/tokens")["items"]] == ["script"]
    api.ask("DELETE", f"/tokens/{made['id']}", 204)
    script.get("/me", 401)
    api.ask("DELETE", f"/tokens/{made['id']}", 404)


def test_a_token_may_do_no_more_than_its_user(api: Api, connect: Connect, client: redis.Redis) -> None:
    store = add_user(client, "ann", "admin", "viewer")
    api.log_in("ann")
    api.ask("POST", "/tokens", 403, json={"name": "t", "rights": ["payloads"]})
    api.ask("POST", "/tokens", 422, json={"name": "t", "rights": ["everything"]})
    made = api.ask("POST", "/tokens", 201, json={"name": "t", "rights": ["view", "admin"]})
    script = connect(Authorization=f"Bearer {made['token']}")
    script.ask("PUT", "/bans/x", 204, json={})
    store.change_user("ann", lambda user: replace(user, roles=("viewer",)))
    script.ask("PUT", "/bans/y", 403, json={})
    store.change_user("ann", lambda user: replace(user, enabled=False))
    script.get("/me", 401)


@pytest.mark.parametrize("header", ["Bearer", "Bearer x", "Bearer hmq_0_0", "Basic YTpi", "nothing"])
def test_what_is_not_a_token_is_refused(connect: Connect, header: str) -> None:
    connect(Authorization=header).get("/me", 401)


def test_a_viewer_sees_and_revokes_only_own_tokens(connect: Connect, client: redis.Redis) -> None:
    add_user(client, "ann", "admin")
    add_user(client, "bob", "viewer")
    ann, bob = connect(), connect()
    ann.log_in("ann")
    bob.log_in("bob")
    of_ann = ann.ask("POST", "/tokens", 201, json={"name": "a"})
    of_bob = bob.ask("POST", "/tokens", 201, json={"name": "b"})
    assert [one["name"] for one in bob.get("/tokens")["items"]] == ["b"]
    bob.ask("DELETE", f"/tokens/{of_ann['id']}", 404)
    ann.ask("DELETE", f"/tokens/{of_bob['id']}", 204)


def test_changes_are_written_down_with_their_failures_and_without_secrets(
    api: Api, client: redis.Redis, hold: HoldMQ
) -> None:
    add_user(client, "ann", "admin")
    session = hold.session("c1")
    session.open("owner", expiry=60)
    session.close()
    api.log_in("ann")
    api.ask("PATCH", "/users/ann", json={"clients": ["c*"]})
    api.ask("POST", "/topics/publish", json={"topic": "a/b", "text": "the payload"})
    api.ask("POST", "/sessions/c1/kick", 409, json={"why": "test"})
    api.ask("POST", "/users", 201, json={"name": "bob", "password": "of bob"})
    found = audited(client)
    told = [(one["what"], one["target"], one["outcome"]) for one in found]
    assert told == [
        ("login", "ann", "done"),
        ("user.change", "ann", "begun"),
        ("user.change", "ann", "done"),
        ("topic.publish", "a/b", "begun"),
        ("topic.publish", "a/b", "done"),
        ("session.kick", "c1", "begun"),
        ("session.kick", "c1", "failed"),
        ("user.add", "bob", "begun"),
        ("user.add", "bob", "done"),
    ]
    assert {(one["who"], one["via"], one["address"]) for one in found} == {("ann", "session", "127.0.0.1")}
    assert all(bool(one["of"]) == (one["outcome"] != "begun") for one in found[1:])
    for secret in ("the payload", "of bob", PASSWORD, PASSWORD_HASH):
        assert secret not in str(found)
    page = api.get("/audit", params={"limit": 6})
    rest = api.get("/audit", params={"limit": 3, "cursor": page["next"]})
    shown = [(one["what"], one["target"], one["outcome"]) for one in page["items"] + rest["items"]]
    assert (shown, rest["next"]) == (told[::-1], None)


def test_every_answer_forbids_what_is_not_its_own(api: Api) -> None:
    for path in ("/", "/login", "/api/v1/me", "/nowhere", "/static/console.js", "/api/v1/nowhere"):
        headers = api.http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] in ("no-store", "no-cache")


def test_a_body_that_is_too_large_is_not_read(api: Api) -> None:
    answer = api.http.post("/api/v1/topics/publish", content=b"x" * 2_097_153)
    assert answer.status_code == 413


# --- Each operation of the API ----------------------------------------------------------------------------------------

OPEN_TO_VIEWERS = {("POST", "/tokens"), ("DELETE", "/tokens/{token_id}")}
"""Changes of the viewer's own."""
FOR_ADMINISTRATORS = {"/audit"}
FOR_READERS = {"/sessions/{client_id}/queue/{serial}"}


def operations(api: Api) -> list[tuple[str, str, str]]:
    """Method, path as it is described, and a path that fits."""
    described = api.http.get(API + "/openapi.json").json()["paths"]
    return [
        (method.upper(), path.removeprefix(API), re.sub(r"\{\w+\}", "1", path.removeprefix(API)))
        for path, of_path in described.items()
        for method in of_path
    ]


def test_no_operation_is_open_to_somebody_unknown(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "admin")
    found = operations(api)
    assert len(found) > 40
    for method, path, place in found:
        assert api.http.request(method, API + place).status_code == 401, (method, path)


def test_no_operation_lets_a_viewer_change_anything(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "viewer")
    api.log_in("ann")
    before = {key: client.dump(key) for key in client.scan_iter() if not key.startswith(b"{holdmq:console}")}
    for method, path, place in operations(api):
        status = api.http.request(method, API + place).status_code
        if method == "GET":
            assert (status == 403) == (path in FOR_ADMINISTRATORS | FOR_READERS), (method, path, status)
        else:
            assert (status == 403) != ((method, path) in OPEN_TO_VIEWERS), (method, path, status)
    assert {key: client.dump(key) for key in client.scan_iter() if not key.startswith(b"{holdmq:console}")} == before
