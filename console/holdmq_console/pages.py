"""The pages: HTML that the server renders, from the same functions as the API. Forms work without scripts.

A form posts to its page and is answered with a redirect. An error is a page with the problem.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from holdmq_console.access import COOKIE, check_right
from holdmq_console.api import channels, filters, history, own, queues, server, sessions, topics, users
from holdmq_console.api.sessions import State
from holdmq_console.console import Admin, Anybody, Here, Reader, Route, Viewer
from holdmq_console.names import MAX_CURSOR, MAX_DIGITS, shown
from holdmq_console.principal import Principal, Right, Via
from holdmq_console.problems import ProblemError

router = APIRouter(route_class=Route, include_in_schema=False, default_response_class=HTMLResponse)

HERE = Path(__file__).parent
NAVIGATION = (
    ("/", "Overview"),
    ("/sessions", "Sessions"),
    ("/topics", "Topics"),
    ("/filters", "Filters"),
    ("/live", "Live"),
    ("/history", "History"),
    ("/channels", "Channels"),
    ("/users", "Users"),
    ("/bans", "Bans"),
    ("/server", "Server"),
    ("/tokens", "Tokens"),
    ("/audit", "Audit"),
)
NOTES = {
    "kicked": "The client was disconnected.",
    "drained": "The bridge disconnects its clients, then ends.",
    "dropped": "The session was removed.",
    "purged": "The queue was emptied.",
    "deleted": "The message was removed.",
    "moved": "The messages were moved.",
    "published": "The message was published.",
    "cleared": "The retained message was removed.",
    "saved": "Saved. Bridges follow at once.",
    "removed": "Removed.",
    "revoked": "The token was revoked.",
}
TEXT = 8192
LARGEST = 1e300
"""Of the values in a curve, whose range has to be a number, too."""

Line = Annotated[str, Form(max_length=TEXT)]
Area = Annotated[str, Form(max_length=262_144)]
Place = Annotated[str, Query(max_length=TEXT)]
Cursor = Annotated[str, Query(max_length=MAX_CURSOR)]


def _segment(name: str) -> str:
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")


def _clock(at: Any) -> str:
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(segment=_segment, size=_bytes, number=_number, clock=_clock, query=urlencode)


def page(request: Request, by: Principal | None, template: str, /, status: int = 200, **context: Any) -> HTMLResponse:
    """Renders a page."""
    path = request.url.path
    current = next((link for link, _ in reversed(NAVIGATION) if link != "/" and path.startswith(link)), "/")
    known = {
        "by": by,
        "csrf": "" if by is None else by.csrf,
        "may_change": by is not None and by.may(Right.ADMIN),
        "may_read": by is not None and by.may(Right.PAYLOADS),
        "can_log_out": by is not None and by.via is Via.SESSION,
        "navigation": NAVIGATION,
        "current": current,
        "note": NOTES.get(request.query_params.get("note", ""), ""),
    }
    return HTMLResponse(shown(_templates.get_template(template).render({**known, **context})), status)


def back(path: str, note: str = "", **query: str) -> RedirectResponse:
    """Shows a page after a form."""
    text = urlencode({**query, **({"note": note} if note else {})})
    return RedirectResponse(f"{path}?{text}" if text else path, 303)


def answer(request: Request, problem: ProblemError) -> Response:
    """A page with a problem; with a link to the login if that is needed."""
    if problem.status == 401 and request.method == "GET" and request.url.path != "/login":
        there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        there = there if len(there) <= TEXT else "/"
        return RedirectResponse(f"/login?{urlencode({'next': there})}", 303)
    response = page(request, None, "problem.html", problem.status, problem=problem)
    response.headers.update(problem.headers)
    return response


# --- Logging in -------------------------------------------------------------------------------------------------------


@router.get("/login")
async def login_page(request: Request, console: Here, next: Place = "/") -> Response:  # noqa: A002 (its name)
    """The form."""
    console.access.check_host(request)
    has_users = await console.access.has_users()
    return page(request, None, "login.html", next=next, failure="", has_users=has_users)


@router.post("/login")
async def log_in(
    request: Request,
    console: Here,
    user: Line = "",
    password: Annotated[str, Form(max_length=2048)] = "",
    next: Line = "/",  # noqa: A002 (its name)
) -> Response:
    """Checks the password."""
    try:
        cookie, _ = await console.access.log_in(request, user, password)
    except ProblemError as problem:
        response = page(request, None, "login.html", problem.status, next=next, failure=problem.detail, has_users=True)
        response.headers.update(problem.headers)
        return response
    target = next if next.startswith("/") and not next.startswith(("//", "/\\")) else "/"
    answered = RedirectResponse(target, 303)
    answered.set_cookie(
        COOKIE,
        cookie,
        max_age=int(console.settings.session_hours * 3600),
        path="/",
        secure=request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://"),
        httponly=True,
        samesite="strict",
    )
    return answered


@router.post("/logout")
async def log_out(console: Here, by: Anybody) -> Response:
    """Ends the login."""
    if by is not None:
        await console.access.log_out(by)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return response


# --- Overview and server ----------------------------------------------------------------------------------------------


@router.get("/")
async def overview_page(request: Request, console: Here, by: Viewer) -> Response:
    """The current state."""
    return page(request, by, "overview.html", it=server.overview(console))


@router.get("/parts/overview")
async def overview_part(request: Request, console: Here, by: Viewer) -> Response:
    """The part of the overview that changes."""
    return page(request, by, "overview_part.html", it=server.overview(console))


@router.get("/server")
async def server_page(request: Request, console: Here, by: Viewer) -> Response:
    """Nodes, bridges, links and settings."""
    return page(
        request,
        by,
        "server.html",
        nodes=(await server.nodes(console)).items,
        bridges=(await server.bridges(console)).items,
        links=await server.links(console),
        settings=(await server.settings(console)).items,
    )


@router.get("/bridges/{name:segment}")
async def bridge_page(request: Request, console: Here, by: Viewer, name: str) -> Response:
    """A bridge."""
    it = await server.bridge(console, name)
    return page(request, by, "bridge.html", it=it, settings=(await server.bridge_settings(console, name)).items)


@router.post("/bridges/{name:segment}/drain")
async def drain_bridge(console: Here, by: Admin, name: str) -> Response:
    """Empties a bridge."""
    await server.drain(console, by, name)
    return back("/server", "drained")


# --- Sessions and queues ----------------------------------------------------------------------------------------------


@router.get("/sessions")
async def sessions_page(
    request: Request,
    console: Here,
    by: Viewer,
    prefix: Place = "",
    user: Place = "",
    state: State = "any",
    cursor: Cursor = "",
) -> Response:
    """A search."""
    found = await sessions.search(console, prefix=prefix, user=user, state=state, limit=50, cursor=cursor)
    template = "sessions_part.html" if request.headers.get("hx-target") == "results" else "sessions.html"
    return page(request, by, template, found=found, prefix=prefix, user=user, state=state)


@router.get("/sessions/{client_id:segment}")
async def session_page(request: Request, console: Here, by: Viewer, client_id: str, cursor: Cursor = "") -> Response:
    """A session."""
    return page(request, by, "session.html", it=await sessions.detail(console, client_id, cursor=cursor))


@router.post("/sessions/{client_id:segment}/kick")
async def kick(console: Here, by: Admin, client_id: str, why: Line = "", epoch: Line = "") -> Response:
    """Disconnects."""
    await sessions.kick(console, by, client_id, why[:200], whole(epoch, "epoch"))
    return back(f"/sessions/{_segment(client_id)}", "kicked")


@router.post("/sessions/{client_id:segment}/drop")
async def drop(console: Here, by: Admin, client_id: str, epoch: Line = "") -> Response:
    """Removes."""
    await sessions.drop(console, by, client_id, whole(epoch, "epoch"))
    return back("/sessions", "dropped")


@router.get("/sessions/{client_id:segment}/queue")
async def queue_page(request: Request, console: Here, by: Viewer, client_id: str, cursor: Cursor = "") -> Response:
    """A queue."""
    found = await queues.page(console, by, client_id, cursor=cursor)
    return page(request, by, "queue.html", found=found, client_id=client_id)


@router.get("/sessions/{client_id:segment}/queue/{serial}")
async def message_page(request: Request, console: Here, by: Reader, client_id: str, serial: queues.Serial) -> Response:
    """A message."""
    item = queues.item_of(await queues.entry_of(console, client_id, serial), by, 65_536)
    return page(request, by, "message.html", item=item, client_id=client_id)


@router.post("/sessions/{client_id:segment}/queue/purge")
async def purge(console: Here, by: Admin, client_id: str) -> Response:
    """Empties."""
    await queues.purge(console, by, client_id, None)
    return back(f"/sessions/{_segment(client_id)}/queue", "purged")


@router.post("/sessions/{client_id:segment}/queue/move")
async def move(
    console: Here, by: Admin, client_id: str, to_session: Line = "", to_topic: Line = "", serial: Line = ""
) -> Response:
    """Moves one message, or all."""
    number = whole(serial, "serial")
    if bool(to_session) == bool(to_topic):
        raise ProblemError(422, "expected either another session or a topic", field="to_session")
    body = queues.Move(
        serials=None if number is None else [number], to_session=to_session or None, to_topic=to_topic or None
    )
    await queues.move(console, by, client_id, body, None)
    return back(f"/sessions/{_segment(client_id)}/queue", "moved")


@router.post("/sessions/{client_id:segment}/queue/{serial}/delete")
async def delete_message(console: Here, by: Admin, client_id: str, serial: queues.Serial) -> Response:
    """Removes one message."""
    await queues.delete(console, by, client_id, serial, None)
    return back(f"/sessions/{_segment(client_id)}/queue", "deleted")


# --- Topics, channels, history ----------------------------------------------------------------------------------------


@router.get("/topics")
async def topics_page(request: Request, console: Here, by: Viewer, below: Place = "", filter: Place = "") -> Response:  # noqa: A002
    """The tree of retained messages, or those of a filter."""
    tree = None if filter else await topics.tree(console, below)
    wanted = filter or below
    found = await topics.retained(console, by, wanted, 100) if wanted else None
    levels = below.split("/") if below else []
    crumbs = [("/".join(levels[: at + 1]), level) for at, level in enumerate(levels)]
    return page(
        request,
        by,
        "topics.html",
        tree=tree,
        found=found,
        filter=filter,
        below=below,
        crumbs=crumbs,
        looked_at=topics.LOOKED_AT,
    )


@router.get("/filters")
async def filters_page(request: Request, console: Here, by: Viewer, topic: Place = "", cursor: Cursor = "") -> Response:
    """Who would receive a topic."""
    found = await filters.matches(console, topic, cursor=cursor) if topic else None
    groups = None if topic else await filters.groups(console, cursor=cursor)
    return page(request, by, "filters.html", found=found, groups=groups, topic=topic)


@router.post("/topics/publish")
async def publish(
    console: Here, by: Admin, topic: Line = "", text: Area = "", qos: Line = "1", retain: Line = ""
) -> Response:
    """Publishes."""
    if not topic:
        raise ProblemError(422, "topic is empty; expected an MQTT topic name", field="topic")
    number = whole(qos, "qos", 2)
    body = topics.Publish(topic=topic, text=text, qos=1 if number is None else number, retain=bool(retain))
    await topics.publish(console, by, body, None)
    return back("/topics", "published")


@router.post("/topics/clear")
async def clear(console: Here, by: Admin, topic: Line = "") -> Response:
    """Removes a retained message."""
    await topics.clear(console, by, topic, None)
    return back("/topics", "cleared")


@router.get("/channels")
async def channels_page(request: Request, console: Here, by: Viewer, name: Place = "", cursor: Cursor = "") -> Response:
    """A channel."""
    it = await channels.detail(console, by, name) if name else None
    found = await channels.held(console, by, name, cursor=cursor) if name else None
    listed = None if name else await channels.listed(console, cursor=cursor)
    return page(request, by, "channels.html", it=it, found=found, listed=listed, name=name)


@router.post("/channels/drop")
async def drop_channel(console: Here, by: Admin, name: Line = "") -> Response:
    """Removes what a channel holds."""
    await channels.drop(console, by, name)
    return back("/channels", "removed", name=name)


@router.get("/history")
async def history_page(
    request: Request,
    console: Here,
    by: Viewer,
    filter: Place = "",  # noqa: A002
    start: Place = "15m",
    end: Place = "",
    cursor: Cursor = "",
) -> Response:
    """Stores, and the replay of a range."""
    stores = (await history.stores(console)).items
    found = None
    if filter or cursor:
        found = await history.replay(console, by, topic_filter=filter, start=start, end=end, limit=200, cursor=cursor)
    return page(
        request,
        by,
        "history.html",
        stores=stores,
        found=found,
        filter=filter,
        start=start,
        end=end,
        points=[] if found is None else numbers([(one.published, one.payload.text) for one in found.items]),
    )


@router.get("/history/{name:segment}")
async def store_page(
    request: Request, console: Here, by: Viewer, name: str, shard: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """A store, and the patterns of one of its shards."""
    it = await history.store(console, name)
    return page(request, by, "store.html", it=it, patterns=await history.patterns(console, name, shard))


def numbers(messages: Sequence[tuple[Any, str | None]]) -> list[tuple[float, float]]:
    """The points of a curve: time and payload of the messages that are numbers."""
    found = []
    for at, text in messages:
        try:
            value = float(text or "")
        except ValueError:
            continue
        if at is not None and abs(value) < LARGEST:  # false for NaN
            found.append((at.timestamp(), value))
    return sorted(found)


@router.get("/live")
async def live_page(request: Request, by: Viewer, filter: Place = "") -> Response:  # noqa: A002
    """A live view."""
    return page(request, by, "live.html", filter=filter)


@router.get("/live/events")
async def live_events(request: Request, console: Here, _by: Viewer, filter: Place = "#") -> Response:  # noqa: A002
    """The events of a live view."""

    async def viewer() -> Principal:
        return check_right(await console.access.resolve(request), Right.VIEW)

    events = await console.live.open(viewer, filter)
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


# --- Users, roles, bans -----------------------------------------------------------------------------------------------


@router.get("/users")
async def users_page(
    request: Request,
    console: Here,
    by: Viewer,
    cursor: Cursor = "",
    client_id: Place = "",
    user: Place = "",
    action: Place = "publish",
    topic: Place = "",
) -> Response:
    """Users, roles, and the question who may do what."""
    found, _ = await users.users(console, cursor=cursor)
    roles, _ = await users.roles(console)
    asked = None
    if topic:
        word = "subscribe" if action == "subscribe" else "publish"
        asked = await users.check(console, client_id=client_id, user_name=user, action=word, topic=topic)
    given: Mapping[str, str] = {"client_id": client_id, "user": user, "action": action, "topic": topic}
    return page(request, by, "users.html", found=found, roles=roles.items, asked=asked, given=given)


@router.post("/users")
async def add_user(
    console: Here,
    by: Admin,
    name: Line = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    roles: Line = "",
) -> Response:
    """Adds a user."""
    if not name:
        raise ProblemError(422, "name is empty; expected the name of a user", field="name")
    body = users.NewUser(name=name, password=password or None, roles=roles.split())
    await users.add_user(console, by, body, None)
    return back(f"/users/{_segment(name)}", "saved")


@router.get("/users/{name:segment}")
async def user_page(request: Request, console: Here, by: Viewer, name: str) -> Response:
    """A user."""
    it, version = await users.user(console, name)
    return page(request, by, "user.html", it=it, version=version)


@router.post("/users/{name:segment}")
async def save_user(  # noqa: PLR0913 (the fields of a form)
    console: Here,
    by: Admin,
    name: str,
    *,
    version: Line = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    enabled: Line = "",
    superuser: Line = "",
    roles: Line = "",
    clients: Area = "",
    rules: Area = "",
) -> Response:
    """Changes a user."""
    body = users.UserChange(
        password=password or None,
        enabled=bool(enabled),
        superuser=bool(superuser),
        roles=roles.split(),
        clients=lines(clients),
        rules=lines(rules),
    )
    await users.change_user(console, by, name, body, whole(version, "version"))
    return back(f"/users/{_segment(name)}", "saved")


@router.post("/users/{name:segment}/delete")
async def delete_user(console: Here, by: Admin, name: str, version: Line = "") -> Response:
    """Removes a user."""
    await users.delete_user(console, by, name, whole(version, "version"))
    return back("/users", "removed")


@router.get("/roles/{name:segment}")
async def role_page(request: Request, console: Here, by: Viewer, name: str) -> Response:
    """A role."""
    it, version = await users.role(console, name)
    return page(request, by, "role.html", it=it, version=version)


@router.post("/roles")
async def add_role(console: Here, by: Admin, name: Line = "") -> Response:
    """Adds a role."""
    if not name:
        raise ProblemError(422, "name is empty; expected the name of a role", field="name")
    await users.add_role(console, by, users.NewRole(name=name), None)
    return back(f"/roles/{_segment(name)}", "saved")


@router.post("/roles/{name:segment}")
async def save_role(console: Here, by: Admin, name: str, version: Line = "", rules: Area = "") -> Response:
    """Replaces the rules of a role."""
    await users.set_rules(console, by, name, lines(rules), whole(version, "version"))
    return back(f"/roles/{_segment(name)}", "saved")


@router.post("/roles/{name:segment}/delete")
async def delete_role(console: Here, by: Admin, name: str, version: Line = "") -> Response:
    """Removes a role."""
    await users.delete_role(console, by, name, whole(version, "version"))
    return back("/users", "removed")


@router.get("/bans")
async def bans_page(request: Request, console: Here, by: Viewer) -> Response:
    """Bans."""
    return page(request, by, "bans.html", found=(await users.bans(console))[0].items)


@router.post("/bans")
async def add_ban(console: Here, by: Admin, pattern: Line = "", why: Line = "") -> Response:
    """Adds a ban."""
    await users.ban(console, by, pattern, why[:1024], None)
    return back("/bans", "saved")


@router.post("/bans/remove")
async def remove_ban(console: Here, by: Admin, pattern: Line = "") -> Response:
    """Lifts a ban."""
    await users.unban(console, by, pattern, None)
    return back("/bans", "removed")


# --- The console itself -----------------------------------------------------------------------------------------------


@router.get("/tokens")
async def tokens_page(request: Request, console: Here, by: Viewer) -> Response:
    """Tokens."""
    return page(request, by, "tokens.html", found=(await own.list_tokens(console, by)).items, made=None)


@router.post("/tokens")
async def make_token(
    request: Request,
    console: Here,
    by: Viewer,
    name: Line = "",
    rights: Annotated[list[str] | None, Form(max_length=3)] = None,
    days: Line = "90",
) -> Response:
    """Makes a token, and shows it once."""
    if not name or not rights:
        raise ProblemError(422, "name or rights are missing; expected a name and at least one right", field="name")
    body = own.NewToken(name=name[:200], rights=rights, days=whole(days, "days", 3650) or 0)
    made = await own.make_token(console, by, body)
    return page(request, by, "tokens.html", found=(await own.list_tokens(console, by)).items, made=made)


@router.post("/tokens/revoke")
async def revoke_token(console: Here, by: Viewer, token_id: Line = "") -> Response:
    """Revokes a token."""
    await own.revoke_token(console, by, token_id)
    return back("/tokens", "revoked")


@router.get("/audit")
async def audit_page(request: Request, console: Here, by: Admin, cursor: Cursor = "") -> Response:
    """Changes."""
    return page(request, by, "audit.html", found=await own.audit(console, limit=50, cursor=cursor))


def whole(text: str, field: str, most: int = 2**53) -> int | None:
    """A number of a form; None for none.

    Raises:
        ProblemError: it is not a whole number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < MAX_DIGITS and int(text) <= most):
        raise ProblemError(422, f"{field} is {text!r}; expected a whole number up to {most}", field=field)
    return int(text)


def lines(text: str) -> list[str]:
    """The lines of a field of a form that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]
