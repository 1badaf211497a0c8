"""The pages in Chromium: what a person does there, on a phone, by keyboard and in the dark; nothing is inaccessible.

HOLDMQ_SCREENSHOTS names a folder: the pictures of docs/console.md are written there (`make screenshots`).
HOLDMQ_CONSOLE_MORE=1 checks each page both light and dark, on a desk and on a phone (`make test-console-more`); without
it, every second page is checked in one way, the others in the other.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdmq import HoldMQ, commands
from tests.console.support import PASSWORD, ConsoleProcess, add_user
from tests.support import BridgeProcess, Server, embedded_kinds, eventually

server_kinds = embedded_kinds
expect.set_options(timeout=30_000)  # the machine may be busy

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
SCREENSHOTS = os.environ.get("HOLDMQ_SCREENSHOTS")
MORE = os.environ.get("HOLDMQ_CONSOLE_MORE") == "1"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}
SESSIONS = 100_000
OPEN_SESSIONS = """
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
    local key = string.format('{dev-%05d}', number)
    redis.call('SESSION.OPEN', key, 'OWNER', 'bridge-1', 'EXPIRY', 3600, 'IDENTITY', 'ann')
end
"""
PAGES = (
    *("/", "/sessions", "/sessions/dev-00042", "/sessions/dev-00042/queue", "/sessions/dev-00042/queue/1"),
    *(
        "/topics",
        "/topics?below=plant",
        "/topics?filter=plant/%23",
        "/live",
        "/live?filter=%23",
        "/filters?topic=plant/1/state",
        "/history",
    ),
    *(
        "/history?filter=plant/%23&start=1h",
        "/history/plants",
        "/channels?name=news",
        "/channels",
        "/filters",
        "/users",
        "/users/root",
    ),
    *("/users?topic=a&user=root", "/roles/sensor", "/bans", "/server", "/tokens", "/audit", "/sessions/nobody"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program is not None, f"none of {', '.join(BROWSERS)} was found: make build/chromium.stamp"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def open_page(browser: Browser, console: ConsoleProcess) -> Iterator[Callable[..., Page]]:
    """Makes tabs that have to stay without errors and ask nobody but the console."""
    contexts = []
    said: list[str] = []

    def make(path: str = "/", user: str = "", **options: Any) -> Page:
        context = browser.new_context(base_url=console.url, **{"viewport": DESK, **options})
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(30_000)
        tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.on("request", lambda request: None if request.url.startswith(console.url) else said.append(request.url))
        if user:
            log_in(tab, user)
        if path != tab.url.removeprefix(console.url):
            tab.goto(path)
        return tab

    yield make
    for context in contexts:
        context.close()
    assert [text for text in said if "status of 4" not in text] == []


def log_in(tab: Page, user: str) -> None:
    tab.goto("/login")
    tab.get_by_label("User").fill(user)
    tab.get_by_label("Password").fill(PASSWORD)
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/")


def picture(tab: Page, name: str) -> None:
    if SCREENSHOTS:
        tab.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


def furnish(client: redis.Redis, sessions: int = 60) -> HoldMQ:
    """Something to see."""
    hold = HoldMQ(client)
    hold.history.create("plants", "plant/#", age="1h", max_bytes=10_000_000)
    for start in range(0, sessions, 10_000):
        client.eval(OPEN_SESSIONS, 0, start, min(start + 10_000, sessions) - 1)
    one = hold.session("dev-00042")
    one.subscribe("plant/#", qos=1)
    for number in range(30):
        text = f'{{"temperature": {20 + number % 7}, "unit": "C"}}'
        hold.topics.publish(f"plant/{number % 3}/state", text, qos=1, retain=True)
        hold.topics.publish("plant/power", str(230 + number % 5), qos=1)
    hold.channel("news").publish("unheard")
    return hold


def test_an_operator_finds_a_session_among_many_looks_into_its_queue_and_removes_a_message(
    open_page: Callable[..., Page], client: redis.Redis
) -> None:
    add_user(client, "root", "admin", "payloads")
    hold = furnish(client, SESSIONS)
    before = hold.session("dev-00042").info().messages
    tab = open_page("/sessions", "root")
    tab.keyboard.press("/")
    tab.keyboard.type("dev-00042")
    expect(tab.locator("tbody tr")).to_have_count(1)
    assert "prefix=dev-00042" in tab.url
    tab.get_by_role("link", name="dev-00042").click()
    expect(tab.get_by_role("heading", level=1)).to_contain_text("dev-00042")
    tab.get_by_role("link", name=f"{before} messages").click()
    expect(tab.locator("tbody")).to_contain_text("plant/0/state")
    picture(tab, "queue")
    tab.get_by_role("link", name="1", exact=True).click()
    expect(tab.locator("main")).to_contain_text('"temperature": 20')
    tab.go_back()
    tab.get_by_role("button", name="Remove message 1", exact=True).click()
    expect(tab.get_by_role("status")).to_have_text("The message was removed.")
    assert hold.session("dev-00042").info().messages == before - 1
    assert hold.session("dev-00042").fetch(count=1).entries[0].serial == 2


def test_a_live_curve_is_watched(open_page: Callable[..., Page], client: redis.Redis) -> None:
    hold = HoldMQ(client)
    tab = open_page("/live?filter=plant/%2B/power")
    expect(tab.locator("[data-state]")).to_have_text("live")
    for number in range(5):
        hold.topics.publish("plant/1/power", f'{{"watt": {230 + number}}}', qos=0)
        hold.topics.publish("elsewhere", "1", qos=0)
    expect(tab.locator("[data-live-curve]")).to_have_attribute("data-drawn", "5")
    rows = tab.locator("[data-messages] tr")
    expect(rows).to_have_count(5)
    expect(rows.first).to_contain_text("plant/1/power")
    rows.first.locator("summary").click()
    expect(rows.first.locator("code")).to_have_text('{\n  "watt": 234\n}')
    tab.get_by_role("button", name="Pause").click()
    hold.topics.publish("plant/1/power", "1", qos=0)
    expect(tab.locator("[data-rate]")).to_have_text(re.compile("^[1-9][0-9]* messages per second$"))
    expect(rows).to_have_count(5)
    picture(tab, "live")
    assert [row.client_id[:8] for row in hold.sessions()] == ["console:"]
    tab.goto("/")
    eventually(lambda: not list(hold.sessions()), 30, "the end of the live view's session")


def test_numbers_are_shown_as_they_were_sent_and_only_finite_ones_are_drawn(
    open_page: Callable[..., Page], client: redis.Redis
) -> None:
    hold = HoldMQ(client)
    tab = open_page("/live?filter=%23")
    expect(tab.locator("[data-state]")).to_have_text("live")
    sent = ["1e999", "-1e999", "NaN", "[" * 500 + "]" * 500, '{"n": 12345678901234567890, "v": 1e999}', "7"]
    for number, text in enumerate(sent):
        hold.topics.publish(f"t/{number}", text, qos=0)
    rows = tab.locator("[data-messages] tr")
    expect(rows).to_have_count(len(sent))
    expect(tab.locator("[data-live-curve]")).to_have_attribute("data-drawn", "2")
    rows.nth(1).locator("summary").click()
    expect(rows.nth(1).locator("code")).to_have_text('{\n  "n": 12345678901234567890,\n  "v": 1e999\n}')


def test_a_live_view_shows_a_bounded_rate(open_page: Callable[..., Page], client: redis.Redis) -> None:
    hold = HoldMQ(client)
    tab = open_page("/live?filter=flood")
    expect(tab.locator("[data-state]")).to_have_text("live")
    for _ in range(3):
        hold.execute_all([commands.topic_publish("flood", b"x", qos=0) for _ in range(1000)])
    expect(tab.locator("[data-rate]")).to_contain_text("20 shown")
    assert tab.locator("[data-messages] tr").count() <= 100


def test_the_overview_draws_curves_and_lists_the_longest_queues(
    open_page: Callable[..., Page], client: redis.Redis, server: Server, bridge: Callable[..., BridgeProcess]
) -> None:
    furnish(client)
    bridge(server, arguments=["--report-interval-s", "0.3", "--sys-interval-s", "0"])
    tab = open_page("/")
    expect(tab.locator(".curve canvas")).to_have_count(5)
    eventually(lambda: int(tab.locator(".curve").first.get_attribute("data-drawn") or 0) > 1, 20, "curves")
    expect(tab.get_by_role("link", name="dev-00042")).to_be_visible(timeout=30_000)
    picture(tab, "overview")


def test_a_rule_is_edited_and_the_deciding_rule_is_named(open_page: Callable[..., Page], client: redis.Redis) -> None:
    store = add_user(client, "root", "admin", "sensor")
    tab = open_page("/roles/sensor", "root")
    tab.get_by_label("Rules").fill("deny publish plant/secret\nallow publish plant/#")
    tab.get_by_role("button", name="Save").click()
    expect(tab.get_by_role("status")).to_contain_text("Saved")
    assert [str(rule) for rule in store.policy().roles["sensor"]] == [
        "deny publish plant/secret",
        "allow publish plant/#",
    ]
    tab.goto("/users")
    tab.get_by_label("User", exact=True).fill("root")
    tab.get_by_label("Topic or filter").fill("plant/secret")
    tab.get_by_role("button", name="Ask").click()
    expect(tab.locator("#answer")).to_have_text("Denied: rule 1 of role sensor: deny publish plant/secret")
    picture(tab, "users")
    tab.goto("/roles/sensor")
    tab.get_by_label("Rules").fill("permit everything")
    tab.get_by_role("button", name="Save").click()
    expect(tab.get_by_role("alert")).to_contain_text("permit everything")
    assert len(store.policy().roles["sensor"]) == 2


def test_a_rule_that_somebody_else_has_edited_is_not_overwritten(
    open_page: Callable[..., Page], client: redis.Redis
) -> None:
    store = add_user(client, "root", "admin", "sensor")
    tab = open_page("/roles/sensor", "root")
    store.block("thief")
    tab.get_by_label("Rules").fill("allow all #")
    tab.get_by_role("button", name="Save").click()
    expect(tab.get_by_role("alert")).to_contain_text("(another edit)")
    assert store.policy().roles["sensor"] == ()


def test_a_viewer_is_refused(open_page: Callable[..., Page], client: redis.Redis) -> None:
    add_user(client, "eve", "viewer")
    furnish(client)
    tab = open_page("/sessions/dev-00042/queue", "eve")
    expect(tab.locator("tbody")).to_contain_text("hidden")
    assert tab.get_by_role("button", name="Remove").count() == 0
    assert "temperature" not in tab.content()
    tab.goto("/sessions/dev-00042/queue/1")
    expect(tab.get_by_role("alert")).to_contain_text("expected the right view and payloads")
    tab.goto("/audit")
    expect(tab.get_by_role("alert")).to_contain_text("eve may not do this")


def test_a_wrong_password_is_reported_and_a_login_leads_to_the_page_that_was_asked_for(
    open_page: Callable[..., Page], client: redis.Redis, console: ConsoleProcess
) -> None:
    add_user(client, "root", "admin")
    tab = open_page("/sessions?prefix=dev")
    tab.get_by_label("User").fill("root")
    tab.get_by_label("Password").fill("wrong")
    tab.get_by_role("button", name="Log in").click()
    expect(tab.get_by_role("alert")).to_have_text("user or password is wrong")
    tab.get_by_label("User").fill("root")
    tab.get_by_label("Password").fill(PASSWORD)
    tab.get_by_role("button", name="Log in").click()
    tab.wait_for_url(f"{console.url}/sessions?prefix=dev")
    tab.get_by_role("button", name="Log out").click()
    tab.wait_for_url("**/login")
    tab.goto("/sessions")
    assert "/login" in tab.url


def test_forms_work_without_script(open_page: Callable[..., Page], client: redis.Redis) -> None:
    add_user(client, "root", "admin", "payloads")
    hold = furnish(client)
    tab = open_page("/topics", "root", java_script_enabled=False)
    tab.get_by_label("Topic", exact=True).fill("plant/new")
    tab.get_by_label("Payload").fill("made by hand")
    tab.get_by_label("Retain").check()
    tab.get_by_role("button", name="Publish").click()
    expect(tab.get_by_role("status")).to_have_text("The message was published.")
    kept = hold.topics.retained_message("plant/new")
    assert kept is not None
    assert kept.payload == b"made by hand"


def test_a_token_is_made_and_shown_once(open_page: Callable[..., Page], client: redis.Redis) -> None:
    add_user(client, "root", "admin")
    tab = open_page("/tokens", "root")
    tab.get_by_label("What it is for").fill("script")
    tab.get_by_role("button", name="Make a token").click()
    expect(tab.locator("[data-token]")).to_have_text(re.compile("^hmq_"))
    tab.goto("/tokens")
    assert tab.locator("[data-token]").count() == 0
    tab.get_by_role("button", name="Revoke the token script").click()
    expect(tab.locator("tbody")).to_contain_text("No tokens.")


def test_a_replay_draws_its_numbers(open_page: Callable[..., Page], client: redis.Redis) -> None:
    furnish(client)
    tab = open_page("/history")
    tab.get_by_label("Filter").fill("plant/power")
    tab.get_by_label("From").fill("1h")
    tab.get_by_role("button", name="Replay").click()
    curve = tab.locator("[data-drawn]")
    expect(curve).to_have_attribute("data-drawn", "30")
    expect(tab.locator("tbody").last.locator("tr")).to_have_count(30)
    # The line has the colour --first; nothing else on the canvas is coloured.
    coloured = """canvas => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let at = 0; at < data.length; at += 4)
            found += data[at + 3] > 200 && Math.abs(data[at] - data[at + 2]) > 60;
        return found;
    }"""
    assert curve.locator("canvas").evaluate(coloured) > 500


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["light desk", "dark phone"])
def test_pages_are_accessible_and_fit(
    open_page: Callable[..., Page], client: redis.Redis, scheme: str, size: dict[str, int]
) -> None:
    add_user(client, "root", "admin", "payloads", "sensor").block("thief", "stolen")
    furnish(client)
    tab = open_page("/login", color_scheme=scheme, viewport=size)
    check(tab, "/login")
    log_in(tab, "root")
    for path in PAGES if MORE else PAGES[size is PHONE :: 2]:
        tab.goto(path)
        check(tab, path)
    if size is PHONE:
        tab.goto("/sessions/dev-00042")
        picture(tab, "phone")


def check(tab: Page, path: str) -> None:
    found = Axe().run(tab, options=RULES)
    assert found.violations_count == 0, f"{path}\n{found.generate_report()}"
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


def test_the_keyboard_reaches_everything(open_page: Callable[..., Page], client: redis.Redis) -> None:
    furnish(client)
    tab = open_page("/sessions")
    tab.keyboard.press("Tab")
    expect(tab.get_by_role("link", name="Skip to content")).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.locator("main")).to_be_focused()
    reached = set()
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.textContent.trim() || document.activeElement.name"))
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert {"prefix", "user", "Search", "dev-00000", "dev-00001"} <= reached
