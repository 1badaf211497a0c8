"""What somebody does who wants in, wants more, or wants the console to be of no use to others."""

import contextlib
import json
import re
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from fastapi.routing import APIRoute

from holdmq import HoldMQ, Message, commands
from holdmq_bridge.auth.passwords import hash_password
from holdmq_bridge.auth.records import User, user_key
from holdmq_bridge.auth.store import Store
from holdmq_console import pages
from holdmq_console.api.users import user as read_user
from holdmq_console.keys import AUDIT, TOKENS
from holdmq_console.turns import AT_ONCE, WAITING
from tests.console.support import API, Api, ConsoleProcess, add_user
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds
Connect = Callable[..., Api]
NewConsole = Callable[..., ConsoleProcess]
LONG = "n" * 40_000

SLOW_S = 30.0
LOGIN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
HALF_A_BODY = LOGIN + b"Content-Length: 1000\r\n\r\nuser="
REFUSED_BODY = LOGIN + b"Content-Length: 90000000\r\n\r\nuser="


@pytest.fixture
def reach() -> Iterator[Callable[[ConsoleProcess], socket.socket]]:
    """Opens connections to a console."""
    made: list[socket.socket] = []

    def make(console: ConsoleProcess) -> socket.socket:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", console.port))
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def holds(console: ConsoleProcess, one: socket.socket) -> bool:
    """Whether the console still has its end of a connection."""
    here, there = f"0100007F:{console.port:04X}", f"0100007F:{one.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any((row[1], row[2]) == (here, there) and row[9] != "0" for row in rows)


# --- Those who are slow -----------------------------------------------------------------------------------------------


def test_who_is_slow_is_cut_off_and_makes_room_for_others(
    new_console: NewConsole, reach: Callable[[ConsoleProcess], socket.socket], hold: HoldMQ
) -> None:
    console = new_console(request_timeout_s=1, live_views=1, live_rate=100_000)
    silent, dripping, half, refused, deaf, watching = (reach(console) for _ in range(6))
    dripping.sendall(b"GET / HT")
    half.sendall(HALF_A_BODY)
    refused.sendall(REFUSED_BODY)
    deaf.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300)
    watching.sendall(b"GET /live/events?filter=%23 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(lambda: select.select([watching], [], [], 0)[0], what="an answer")

    def left() -> list[str]:
        for one in (dripping, half, refused):
            with contextlib.suppress(OSError):
                one.sendall(b"x")
        for _ in range(100):
            hold.topics.publish("a", b"x" * 10_000)
        ones = {"silent": silent, "dripping": dripping, "half": half, "refused": refused, "deaf": deaf}
        return [name for name, one in {**ones, "watching": watching}.items() if holds(console, one)]

    eventually(lambda: not left(), SLOW_S, "connections that the console has ended")
    eventually(lambda: opens(console), what="another view")


def opens(console: ConsoleProcess) -> bool:
    with httpx.stream("GET", f"{console.url}/live/events?filter=a", timeout=10) as answer:
        return answer.status_code == 200


def test_one_address_has_half_of_the_connections(
    new_console: NewConsole, reach: Callable[[ConsoleProcess], socket.socket]
) -> None:
    console = new_console(max_connections=4)
    several = [reach(console) for _ in range(2)]
    eventually(lambda: all(holds(console, one) for one in several), what="two connections")
    third = reach(console)
    eventually(lambda: not holds(console, third), 5, "a third one that the console ends")
    for one in several:
        one.close()
    eventually(lambda: answers(console), what="an answer when they are gone")


def answers(console: ConsoleProcess) -> bool:
    try:
        return httpx.get(f"{console.url}/login").status_code == 200
    except httpx.TransportError:
        return False


def test_who_asks_for_much_at_once_waits_and_others_do_not(
    api: Api,
    connect: Connect,
    client: redis.Redis,
    server: Server,
    bridge: Callable[..., BridgeProcess],
    reach: Callable[[ConsoleProcess], socket.socket],
    console: ConsoleProcess,
) -> None:
    add_user(client, "vic", "viewer")
    add_user(client, "root", "admin")
    api.log_in("vic")
    other = connect()
    other.log_in("root")
    silent = bridge(server)
    eventually(lambda: api.get("/bridges")["items"], 30, "the report of the bridge")
    name = api.get("/bridges")["items"][0]["name"]
    silent.kill()  # its report stays a while: a question to it waits 10 s
    cookie = f"Cookie: holdmq_console={api.http.cookies['holdmq_console']}"
    ask = f"GET {API}/bridges/{name}/settings HTTP/1.1\r\nHost: localhost\r\n{cookie}\r\n\r\n"
    browsers = [reach(console) for _ in range(AT_ONCE + WAITING + 2)]
    for one in browsers:
        one.sendall(ask.encode())
    eventually(lambda: len(select.select(browsers, [], [], 0)[0]) == 2, 8, "two requests that are refused")
    assert [one.recv(12) for one in select.select(browsers, [], [], 0)[0]] == [b"HTTP/1.1 429"] * 2
    assert client.llen(f"{{holdmq:bridges}}:{name}:asked") == AT_ONCE
    assert other.get("/me")["name"] == "root"


def test_a_large_body_of_somebody_unknown_is_not_parsed(api: Api, client: redis.Redis) -> None:
    """Two megabytes of JSON take more than a second of everybody's time."""
    add_user(client, "ann", "viewer")
    add_user(client, "bob", "admin")
    for path in ("/api/v1/topics/publish", "/login", "/users"):
        answer = api.http.post(path, content=b"{" * 100_000, headers={"Content-Type": "application/json"})
        assert answer.status_code == 401, path
    api.log_in("ann")
    assert api.http.post("/api/v1/topics/publish", content=b"{" * 100_000).status_code == 403
    api.log_in("bob")
    api.ask("POST", "/topics/publish", json={"topic": "a", "text": "x" * 100_000})


# --- Pages of others --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "empty"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}, 200),
    ],
)
def test_a_page_of_another_site_opens_no_views_here(api: Api, headers: dict[str, str], status: int) -> None:
    with api.http.stream("GET", "/live/events?filter=a", headers=headers) as answer:
        assert answer.status_code == status


def test_what_others_have_named_is_text_on_every_page(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    evil = "<img src=x onerror=alert(1)>'\"{{7*7}}"
    session = hold.session(evil)
    session.open(evil, expiry=60, identity=evil)
    session.subscribe(evil, qos=1)
    session.deliver(Message(topic=evil, payload=evil.encode(), qos=1, publisher=evil))
    hold.topics.publish(evil, evil.encode(), retain=True)
    hold.channel(evil).publish(evil.encode())
    api.ask("PUT", "/bans/" + quoted(evil), 204, json={"why": evil})
    add_user(client, evil, evil, "admin", "payloads")
    api.log_in(evil)
    for path in (
        "/sessions",
        f"/sessions?prefix={quoted(evil)}&user={quoted(evil)}",
        f"/sessions/{quoted(evil)}",
        f"/sessions/{quoted(evil)}/queue",
        f"/topics?filter={quoted(evil)}",
        "/topics",
        f"/filters?topic={quoted(evil)}",
        f"/live?filter={quoted(evil)}",
        f"/history?filter={quoted(evil)}&start={quoted(evil)}",
        f"/channels?name={quoted(evil)}",
        "/users",
        f"/users/{quoted(evil)}",
        f"/users?topic=a&user={quoted(evil)}&client_id={quoted(evil)}&action={quoted(evil)}",
        f"/roles/{quoted(evil)}",
        "/bans",
        "/audit",
        "/tokens",
        f"/history/{quoted(evil)}",
        f"/bridges/{quoted(evil)}",
        f"/login?next={quoted(evil)}",
        f"/sessions?cursor={quoted(evil)}",
        f"/{quoted(evil)}",
    ):
        text = api.http.get(path).text
        assert "<img" not in text, path
        assert "'\"{{" not in text, path


def quoted(text: str) -> str:
    return str(httpx.QueryParams({"q": text}))[2:].replace("+", "%20")


# --- Those who are no longer who they were ----------------------------------------------------------------------------


@pytest.mark.timeout(30)
def test_a_live_view_ends_with_its_login_and_hides_payloads_with_the_right(
    api: Api, client: redis.Redis, hold: HoldMQ
) -> None:
    store = add_user(client, "ann", "viewer", "payloads")
    api.log_in("ann")
    with api.http.stream("GET", "/live/events?filter=a", timeout=10) as answer:
        texts = answer.iter_lines()
        assert not next_payload(hold, texts, is_hidden=False)["hidden"]
        store.change_user("ann", lambda user: replace(user, roles=("viewer",)))
        assert "secret" not in str(next_payload(hold, texts, is_hidden=True))
        store.change_user("ann", lambda user: replace(user, enabled=False))
        assert "event: trouble" in list(texts)  # it ends by itself
    api.get("/me", 401)


def next_payload(hold: HoldMQ, texts: Iterator[str], *, is_hidden: bool) -> Any:
    """Publishes one message a second until one is shown as it should be."""
    for name in texts:
        if name in ("event: open", "event: rate"):
            hold.topics.publish("a", b"secret")
        if name == "event: message":
            found = json.loads(next(texts).removeprefix("data: "))["payload"]
            if found["hidden"] is is_hidden:
                return found
    raise AssertionError("the view has ended")


def test_a_token_ends_with_the_password_of_its_user(api: Api, connect: Connect, client: redis.Redis) -> None:
    """A user of the same name is somebody else."""
    store = add_user(client, "ann", "admin")
    api.log_in("ann")
    made = api.ask("POST", "/tokens", 201, json={"name": "t"})
    script = connect(Authorization=f"Bearer {made['token']}")
    script.get("/me")
    store.delete_user("ann")
    script.get("/me", 401)
    store.add_user(User("ann", password=hash_password(b"of another ann"), roles=("admin",)))
    script.get("/me", 401)


def test_a_token_that_cannot_be_read_refuses_and_hides_no_other(
    api: Api, connect: Connect, client: redis.Redis
) -> None:
    add_user(client, "ann", "viewer")
    api.log_in("ann")
    api.ask("POST", "/tokens", 201, json={"name": "mine"})
    whole = json.loads(next(iter(client.hvals(TOKENS))))
    wrong = [{"created": 10**15}, {"expires": "never"}, {"expires": -1}, {"user": 5}, {"name": ["x"]}, {"digest": None}]
    for text in ("", "[]", "{}", '{"rights": 5}', '{"user": "ann"}', *(json.dumps(whole | one) for one in wrong)):
        client.hset(TOKENS, "0" * 16, text)
        assert [one["name"] for one in api.get("/tokens")["items"]] == ["mine"]
        connect(Authorization=f"Bearer hmq_{'0' * 16}_{'x' * 43}").get("/me", 401)


def test_one_user_does_not_take_all_tokens(api: Api, client: redis.Redis) -> None:
    add_user(client, "ann", "viewer")
    add_user(client, "bob", "viewer")
    api.log_in("ann")
    api.ask("POST", "/tokens", 201, json={"name": "t"})
    [text] = client.hvals(TOKENS)
    client.hset(TOKENS, mapping={f"{number:016x}": text for number in range(99)})
    refused = api.ask("POST", "/tokens", 409, json={"name": "t"})
    assert "100 tokens" in refused["detail"]
    api.log_in("bob")
    api.ask("POST", "/tokens", 201, json={"name": "t"})


# --- Two who edit at once ---------------------------------------------------------------------------------------------


async def test_an_etag_is_never_of_a_later_state_than_what_was_read(client: redis.Redis) -> None:
    add_user(client, "ann")

    class Racing(Store):
        """Somebody edits while another reads."""

        def user(self, name: str) -> User:
            found = super().user(name)
            Store(client).change_user("ann", lambda user: replace(user, superuser=True))
            return found

    class Broker:
        async def store(self, use: Callable[[Store], Any]) -> Any:
            return use(Racing(client))

    class Console:
        broker = Broker()

    found, version = await read_user(Console(), "ann")  # type: ignore[arg-type]
    assert not found.superuser
    assert version < Store(client).version()


def test_the_etag_of_a_session_that_was_never_opened_is_a_condition(api: Api, hold: HoldMQ) -> None:
    session = hold.session("c1")
    session.deliver(Message(topic="a", payload=b"x", qos=1))
    tag = api.tag("/sessions/c1")
    session.open("owner", expiry=60)
    headers = {"If-Match": tag}
    api.ask("DELETE", "/sessions/c1/queue", 412, headers=headers)
    api.ask("DELETE", "/sessions/c1/queue/1", 412, headers=headers)
    api.ask("POST", "/sessions/c1/queue/move", 412, headers=headers, json={"to_topic": "t"})
    api.ask("DELETE", "/sessions/c1", 412, headers=headers)
    assert session.info().messages == 1


def test_a_role_that_is_made_on_the_way_is_written_down(api: Api, client: redis.Redis) -> None:
    api.ask("POST", "/users", 201, json={"name": "ann", "password": "x", "roles": ["admin", "payloads"]})
    entries: Any = client.xrange(AUDIT)
    done = [(one[b"what"], one[b"target"]) for _, one in entries if one[b"outcome"] == b"done"]
    assert sorted(done) == [(b"role.add", b"admin"), (b"role.add", b"payloads"), (b"user.add", b"ann")]


# --- Much at once -----------------------------------------------------------------------------------------------------


def test_a_list_reads_a_bounded_number_of_bytes(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    for number in range(120):
        hold.topics.publish(f"big/{number:03}", b"x" * 200_000, retain=True)
        hold.channel("big").publish(b"x" * 200_000)
    for path, size in (("/topics/retained?filter=big/%23&limit=120", 40), ("/channels/big/messages?limit=120", 50)):
        before = client.info("stats")["total_net_output_bytes"]
        found = api.get(path)
        assert client.info("stats")["total_net_output_bytes"] - before < 10_000_000, path
        assert 0 < len(found["items"]) < size
        assert found.get("next") or not found["complete"]
    place: str | None = ""
    seen = 0
    while place is not None:
        found = api.get("/channels/big/messages", params={"limit": 120, **({"cursor": place} if place else {})})
        place, seen = found["next"], seen + len(found["items"])
    assert seen == hold.execute(commands.channel_len("big"))


def test_a_session_of_very_many_subscriptions_is_shown_in_parts(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    """All 30,000 took seconds, in which the console did nothing else."""
    session = hold.session("c1")
    session.open("owner", expiry=60)
    for begin in range(0, 30_000, 500):
        session.subscribe(*(f"a/{number}" for number in range(begin, begin + 500)), qos=1, retain_handling=2)
    client.config_resetstat()
    shown = api.get("/sessions/c1")
    assert shown["subscriptions_total"] == 30_000
    assert 1000 <= len(shown["subscriptions"]) < 1300
    assert api.http.get("/sessions/c1").text.count("<code>a/") == len(shown["subscriptions"])
    assert "cmdstat_session.subscriptions" not in {name.lower() for name in client.info("commandstats")}
    found = {one["filter"] for one in shown["subscriptions"]}
    place = shown["subscriptions_next"]
    while place is not None:
        page = api.get("/sessions/c1/subscriptions", params={"cursor": place})
        found |= {one["filter"] for one in page["items"]}
        place = page["next"]
    assert found == {f"a/{number}" for number in range(30_000)}
    refused = api.get("/sessions/c1/subscriptions", 422, params={"cursor": "x"})
    assert refused["errors"][0]["field"] == "cursor"


def test_subscriptions_of_long_names_are_shown_in_parts(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    session = hold.session("c1")
    for number in range(100):
        session.subscribe(f"{number:02}/{LONG}", qos=1)
    before = client.info("stats")["total_net_output_bytes"]
    shown = api.get("/sessions/c1")
    assert client.info("stats")["total_net_output_bytes"] - before < 1_500_000
    assert 0 < len(shown["subscriptions"]) < 50
    assert shown["subscriptions_next"]


def test_a_list_of_the_largest_messages_reads_one_at_a_time(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    """Sixteen at once took a second of the server, and 270 MB of its output and of the console."""
    for number in range(20):
        hold.topics.publish(f"big/{number:03}", b"x" * 8_000_000, retain=True)
        hold.channel("big").publish(b"x" * 8_000_000)
    for path in ("/topics/retained?filter=big/%23", "/channels/big/messages"):
        before = client.info("stats")["total_net_output_bytes"]
        found = api.get(path)
        assert client.info("stats")["total_net_output_bytes"] - before < 10_000_000, path
        assert len(found["items"]) == 1
        assert found["items"][0].get("payload", found["items"][0])["size"] == 8_000_000


@pytest.mark.parametrize("path", ["/channels/c/messages", "/sessions/c1/queue", "/filters/matches?topic=a"])
def test_a_number_of_many_digits_is_not_a_cursor(api: Api, hold: HoldMQ, path: str) -> None:
    hold.session("c1").open("owner", expiry=60)
    for cursor in ("0" * 25 + "9" * 40, "9" * 8000):
        refused = api.get(path, 422, params={"cursor": cursor, **({"topic": "a"} if "topic" in path else {})})
        assert refused["errors"][0]["field"] == "cursor"


# --- A server without memory ------------------------------------------------------------------------------------------


def test_who_logs_in_when_the_memory_is_full_can_make_room(api: Api, client: redis.Redis, hold: HoldMQ) -> None:
    add_user(client, "ann", "admin")
    hold.session("c1").deliver(Message(topic="a", payload=b"x", qos=1))
    api.log_in("ann")
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", "x")
        api.log_in("ann")
        assert api.ask("DELETE", "/sessions/c1/queue") == {"messages": 1}
        assert api.http.post("/logout", data={"csrf": api.csrf()}).status_code == 303
    finally:
        client.config_set("maxmemory", "0")
    entries: Any = client.xrange(AUDIT)
    assert [one[b"what"] for _, one in entries][-4:] == [b"login", b"queue.purge", b"queue.purge", b"logout"]


# --- Names ------------------------------------------------------------------------------------------------------------

ODD = [b"\xff\xfe", b"a\nb", "\u202egnp.exe".encode(), b"a\x00b", "\u2066x\u2069".encode(), b"\xed\xa0\x80"]


def walk_of(api: Api, path: str, what: str, **params: Any) -> list[str]:
    """The names in a list, read one at a time."""
    found: list[str] = []
    cursor = ""
    for _ in range(100):
        page = api.get(path, params={**params, "limit": 1, **({"cursor": cursor} if cursor else {})})
        found += [item[what] for item in page["items"]]
        if page["next"] is None:
            return found
        cursor = page["next"]
    raise AssertionError("the list does not end")


def test_a_long_name_does_not_end_the_walk_through_a_list(api: Api, hold: HoldMQ) -> None:
    names = ["a", f"b{LONG}", "c"]
    for name in names:
        session = hold.session(name)
        session.open("owner", expiry=60)
        hold.channel(name[:16_000]).publish(b"x")
    hold.session("a").subscribe(*(f"$share/g/{name}" for name in names), qos=1)
    assert walk_of(api, "/sessions", "client_id") == names
    assert walk_of(api, "/channels", "name") == [name[:16_000] for name in names]
    assert walk_of(api, "/groups", "filter") == [f"$share/g/{name}" for name in names]
    assert walk_of(api, "/filters/matches", "client_id", topic="b" + LONG) == [f"$share/g/b{LONG}"]


def test_a_page_of_long_names_ends_early(api: Api, hold: HoldMQ) -> None:
    """Fifty of them made a page of 6 MB, which took a second of everybody's time."""
    names = [f"{number:02}/{LONG}" for number in range(20)]
    for name in names:
        hold.session(name).open("owner", expiry=60)
    assert len(api.http.get("/sessions").content) < 2_000_000
    assert len(api.get("/sessions?limit=1000")["items"]) < 10
    found: list[str] = []
    place: str | None = ""
    while place is not None:
        page = api.get("/sessions", params={"limit": 1000, **({"cursor": place} if place else {})})
        found += [one["client_id"] for one in page["items"]]
        place = page["next"]
    assert found == names


def test_the_overview_shortens_long_names_and_bounds_their_number(api: Api, hold: HoldMQ) -> None:
    names = [f"{number:02}/{LONG}" for number in range(20)]
    for name in names:
        hold.session(name).open("owner", expiry=60)
        hold.session(name).deliver(Message(topic="t", payload=b"x", qos=1))
    short = [f'title="{name}">{name[:48]}…<' for name in names]

    def shown() -> str:
        page = api.http.get("/").text
        return page if any(one in page for one in short) else ""

    assert len(eventually(shown, 30, "a survey of all sessions")) < 2_000_000


def test_a_time_that_no_calendar_has_is_shown_as_the_last_one(api: Api, hold: HoldMQ) -> None:
    hold.session("c1").open("owner", expiry=60)
    late = Message(topic="t", payload=b"x", qos=1, time_ms=2**48 - 1)
    hold.session("c1").add(late.to_record())
    (item,) = api.get("/sessions/c1/queue")["items"]
    assert item["message"]["published"].startswith("9999-12-31T23:59:59")


def test_a_report_that_cannot_be_read_stops_no_curve(new_console: NewConsole, client: redis.Redis) -> None:
    console = new_console(sample_interval_s=0.1)
    names, report = "{holdmq:bridges}:names", "{holdmq:bridges}:odd"
    fields = ("pid", "clients", "publishes_received", "publishes_received_rate", "messages_sent", "messages_sent_rate")
    client.zadd(names, {"odd": 2**40})
    client.hset(report, mapping={"host": "h", "version": "0", "started": 0, "loudest": "5", **dict.fromkeys(fields, 1)})
    with Api(console).http as http:
        overview = f"{API}/overview"
        trouble = eventually(lambda: http.get(overview).json()["trouble"], 20, "a report of the trouble")
        assert "TypeError" in trouble
        client.delete(report)
        eventually(lambda: not http.get(overview).json()["trouble"], 20, "curves that continue")


def test_odd_names_break_no_page(api: Api, client: redis.Redis) -> None:
    for name in ODD:
        key = b"{" + name + b"}"
        client.execute_command("SESSION.OPEN", key, "OWNER", name, "EXPIRY", 60)
        client.publish(name, name)
        client.execute_command("SESSION.ADD", key, name)
    for path in ("/sessions", "/channels"):
        assert len(walk_of(api, path, "client_id" if path == "/sessions" else "name")) == len(ODD)
        assert api.http.get(path).status_code == 200
    for name in ODD:
        place = "".join(f"%{byte:02X}" for byte in name)
        for path in (f"/sessions/{place}", f"/sessions/{place}/queue", f"/sessions/{place}/queue/1"):
            assert api.http.get(path).status_code in (200, 404, 422), path
            assert api.http.get(f"/api/v1{path}").status_code in (200, 404, 422), path
        assert api.http.get(f"/channels?name={place}").status_code in (200, 404, 422), place


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", "//", "\xff", "http://a:99999999"])
def test_an_invalid_origin_is_refused(api: Api, origin: str) -> None:
    api.ask("PUT", "/bans/x", 403, json={}, headers={"Origin": origin.encode("latin-1")})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/users", b'{"name": "\\ud800"}'),
        ("POST", "/topics/publish", b'{"topic": "a\\udcff", "text": "x"}'),
        ("POST", "/topics/publish", b'{"topic": "a", "text": "\\ud800"}'),
        ("PUT", "/roles/x", b'{"rules": ["allow publish \\udfff"]}'),
        ("PUT", "/bans/x", b'{"why": "\\ud800"}'),
        ("POST", "/sessions/c1/queue/move", b'{"to_session": "\\ud800"}'),
        ("POST", "/sessions/c1/kick", b'{"why": "\\ud800"}'),
        ("POST", "/topics/publish", b"[" * 20_000),
        ("POST", "/topics/publish", b'{"topic": "a", "qos": 1e999}'),
        ("POST", "/topics/publish", b'{"topic": "a", "ttl_s": ' + b"9" * 10_000 + b"}"),
    ],
)
def test_a_body_of_odd_characters_and_numbers_is_refused(api: Api, method: str, path: str, body: bytes) -> None:
    answer = api.http.request(method, f"/api/v1{path}", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404, 409, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"[" * 20_000, b"\xff", b"{", b'{"name": 1' + b"0" * 60_000])
def test_a_body_that_is_not_json_is_named(api: Api, body: bytes) -> None:
    answer = api.http.post("/api/v1/users", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert [one["field"] for one in answer.json()["errors"]] == ["body"], answer.text
    assert "expected JSON" in answer.json()["detail"]


FIELDS = ("user", "password", "next", "name", "topic", "text", "qos", "serial", "to_session", "epoch", "why", "pattern")
MORE_FIELDS = ("rules", "roles", "rights", "days", "token_id", "clients", "version", "enabled", "retain", "superuser")


def test_no_form_is_a_defect_whatever_its_fields_hold(api: Api) -> None:
    routes = {
        (method, re.sub(r"\{[^}]+\}", "1", route.path))
        for route in pages.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert len(routes) > 40
    for value in ("%FF%FE", "%00", "9" * 30, "%ED%A0%80", "-1", "a%0D%0Ab: c", "%E2%80%AE"):
        text = "&".join(f"{name}={value}" for name in (*FIELDS, *MORE_FIELDS, "to_topic", "filter", "cursor", "start"))
        for method, path in sorted(routes):
            if path == "/live/events":
                continue
            if method == "POST":
                headers = {"Content-Type": "application/x-www-form-urlencoded"}
                answer = api.http.post(path, content=text.encode(), headers=headers)
            else:
                answer = api.http.get(f"{path}?{text}")
            assert answer.status_code < 500, (method, path, value, answer.text[-300:])


# --- A server that refuses writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", ["READONLY", "NOREPLICAS", "WRONGTYPE"])
def test_a_change_that_cannot_be_written_down_is_not_made(
    refusal: str, api: Api, client: redis.Redis, hold: HoldMQ
) -> None:
    add_user(client, "ann", "admin", "payloads")
    hold.session("c1").open("owner", expiry=60)
    hold.session("c1").deliver(Message(topic="a", payload=b"x", qos=1))
    hold.topics.publish("kept", b"x", retain=True)
    api.log_in("ann")
    written = client.xlen(AUDIT)
    if refusal == "READONLY":
        client.replicaof("127.0.0.1", "1")
    elif refusal == "NOREPLICAS":
        client.config_set("min-replicas-to-write", "1")
    else:
        client.set(AUDIT, "no stream")
    users = client.hgetall(user_key("ann"))
    try:
        for method, path, body in (
            ("DELETE", "/sessions/c1/queue", None),
            ("DELETE", "/sessions/c1", None),
            ("DELETE", "/topics/kept/retained", None),
            ("PATCH", "/users/ann", {"enabled": False}),
            ("PUT", "/bans/c1", {}),
            ("POST", "/tokens", {"name": "t"}),
        ):
            answer = api.http.request(method, "/api/v1" + path, json=body)
            assert answer.status_code in (502, 503), (path, answer.text)
            assert (AUDIT if refusal == "WRONGTYPE" else "") in answer.json()["detail"]
        assert hold.session("c1").info().messages == 1
        assert hold.topics.retained_message("kept") is not None
        assert client.hgetall(user_key("ann")) == users
        assert not client.exists(TOKENS)
        assert api.get("/me")["name"] == "ann"  # who has logged in still looks
    finally:
        if refusal == "READONLY":
            client.replicaof("NO", "ONE")
        client.config_set("min-replicas-to-write", "0")
    if refusal != "WRONGTYPE":
        assert client.xlen(AUDIT) == written
