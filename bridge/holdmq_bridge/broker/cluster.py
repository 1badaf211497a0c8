"""What only a bridge over a cluster does: tells the engine who has which slot, and lets nodes learn routes.

    NodeLinks: nodes, slots ──► take_slots ──► engine
    engine: SLOT_MOVED ──► another node has the slot ──► NodeLinks
    engine: ROUTES_MISSING ──► Feeder ──► engine: try again
    a client's SUBSCRIBE ──► Routes: every node that answers knows it ──► the reply ──► Retained
                        └──► Groups: $share, which has a session of its own
    a client's OPEN ──► the reply ──► Outboxes: all nodes have its former will ──► CONNACK
    sessions end, nodes are back ──► Outboxes

Invariants
 1. A command that is sent again while it is under way is not begun a second time.
 2. At most one task waits for each feed that the engine asks for.
"""

import asyncio
from collections.abc import Callable

import hiredis

from holdmq.core.engine import NO_LINK, Event
from holdmq_bridge.base.command import Command, Kind, Reply, error_code
from holdmq_bridge.base.target import Target
from holdmq_bridge.broker.client import Client
from holdmq_bridge.broker.groups import Groups, GroupsHost, has_groups, is_of_group
from holdmq_bridge.broker.member_ends import MemberEnds
from holdmq_bridge.broker.outboxes import Outboxes
from holdmq_bridge.broker.retained import Retained
from holdmq_bridge.process.process import Process
from holdmq_bridge.process.settings import Settings
from holdmq_bridge.server.calls import Calls, OnLost, OnReply
from holdmq_bridge.server.feeder import Feeder
from holdmq_bridge.server.node_calls import NodeCalls
from holdmq_bridge.server.node_links import NodeLinks
from holdmq_bridge.server.routes import Routes

_ROUTES_S = 10.0  # for one command with subscriptions
_MOVE_LOOK_S = 0.5  # between two looks at the cluster while a slot is on its way
_PAIRS_AT = 4  # SESSION.SUBSCRIBE key EPOCH epoch, then the pairs
# Refusals that say nothing of whether publishes can be stored.
_OF_ROUTES = ("MOVED", "ASK", "TRYAGAIN", "NOROUTES", "NOHOME", "STALEHOME", "UNKNOWN", "REFUSED")


class ClusterSettingsError(ValueError):
    """A cluster cannot be served with these settings; the text says why."""


def check(settings: Settings) -> None:
    """Raises ClusterSettingsError if a cluster cannot be served with these settings."""
    target = Target.parse(settings.redis)
    if target.database:
        raise ClusterSettingsError(
            f"database {target.database}: the server is a node of a cluster, which has only database 0"
        )
    if target.path is not None or target.sentinels:
        raise ClusterSettingsError(
            "the server is a node of a cluster; expected an address that leads to its other nodes, too, "
            "redis://host:port or rediss://host:port"
        )


class Cluster:
    """One for each process."""

    def __init__(self, process: Process, links: NodeLinks, calls: Calls, host: GroupsHost) -> None:
        self._process = process
        self._links = links
        self._calls = calls
        self._nodes = NodeCalls(links, calls)
        self._feeder = Feeder(self._nodes)
        self._routes = Routes(self._nodes, self._feeder, _ROUTES_S)
        self._groups = Groups(process, calls, self._nodes, self._routes, host, _ROUTES_S)
        self._retained = Retained(process, links, calls, self._nodes)
        self._outboxes = Outboxes(process, links, calls, MemberEnds(self._nodes))
        self._opening: set[Command] = set()  # without a reply to their clients
        self._opened: set[asyncio.Task[None]] = set()  # which wait for wills
        self._subscribing: dict[Command, asyncio.Task[None]] = {}
        self._leaving: dict[Command, asyncio.Task[None]] = {}
        self._feeding: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._move_until = 0.0  # slots may be on their way; publishes that they refused are tried again by then
        self._move_look: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to read outboxes."""
        self._outboxes.start()

    async def stop(self) -> None:
        """Ends all that is under way."""
        if self._move_look is not None:
            self._move_look.cancel()
        tasks = [*self._opened, *self._subscribing.values(), *self._feeding.values(), *self._leaving.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._groups.stop()
        await self._outboxes.stop()
        await self._retained.stop()
        await self._routes.stop()
        await self._feeder.stop()

    # ---- slots -----------------------------------------------------------------------------------------------------

    def take_slots(self) -> None:
        """Tells the engine which node each link has, and which link each slot."""
        engine = self._process.engine
        for link, node in self._links.numbers():
            engine.node(link, node.encode())
        for first, last, owner in self._links.slots():
            engine.slots(first, last, NO_LINK if owner is None else owner)
        self._outboxes.slots_moved()

    def slot_moved(self, event: Event) -> None:
        """A node replied that another node has the slot: `MOVED host:port`."""
        self._links.refused(event.link, f"MOVED {event.token} {event.data.decode(errors='replace').split()[-1]}")

    def publish_refused(self, link: int, error: str) -> bool:
        """A node refused a publish temporarily.  Returns whether publishes cannot be stored there."""
        code = error_code(error)
        if code == "READONLY":  # said by any node that the publish visited
            self._links.look()
        elif code == "MOVED":
            self._links.refused(link, error)
        elif code == "TRYAGAIN":
            self._follow_move()
        return code not in _OF_ROUTES

    def _follow_move(self) -> None:
        """A slot is on its way.  Looks for its end, by which the engine wakes the publishes that it has refused."""
        self._move_until = self._process.loop.time() + self._process.settings.retry_max_s
        if self._move_look is None:
            self._look_at_move()

    def _look_at_move(self) -> None:
        self._move_look = None
        if self._process.loop.time() < self._move_until:
            self._links.look()
            self._move_look = self._process.loop.call_later(_MOVE_LOOK_S, self._look_at_move)

    # ---- sessions --------------------------------------------------------------------------------------------------

    def open(self, client: Client, command: Command, link: int, on_reply: OnReply, on_lost: OnLost) -> None:
        """Carries out a SESSION.OPEN.  `on_reply` gets the reply when the former will of the client is published."""
        if command in self._opening:
            return
        self._opening.add(command)
        slot = client.slot

        def lost() -> None:
            self._opening.discard(command)
            on_lost()

        def opened(reply: Reply) -> None:
            if isinstance(reply, hiredis.ReplyError):
                self._opening.discard(command)
                on_reply(reply)
                return
            waiting = self._after_will(client.client_id, slot, command, lambda: on_reply(reply))
            task = self._process.loop.create_task(waiting)
            self._opened.add(task)
            task.add_done_callback(self._opened.discard)

        self._calls.call(command.arguments, opened, link, lost)

    async def _after_will(self, client_id: bytes, slot: int, command: Command, go_on: Callable[[], None]) -> None:
        await self._outboxes.publish_will(slot, client_id)
        self._opening.discard(command)
        go_on()
        self.look_at_outbox(slot)

    def look_at_outbox(self, slot: int) -> None:
        """A session of this slot has begun or ended."""
        link = self._links.link_at(slot)
        if link is not None:
            self._outboxes.look(link)

    def node_is_back(self) -> None:
        """A link is up again."""
        self._outboxes.look_at_all()

    # ---- routes ----------------------------------------------------------------------------------------------------

    def routes_missing(self, event: Event) -> None:
        """A node lacks routes, or is not known to one that was visited: `data` names it."""
        about = event.link, event.data.decode(errors="replace")
        if about not in self._feeding:
            task = self._feeding[about] = self._process.loop.create_task(self._feed(*about))
            task.add_done_callback(lambda _task: self._feeding.pop(about, None))

    async def _feed(self, link: int, node: str) -> None:
        await self._feeder.feed(node)
        # Also if it was not fed: the engine asks again, once in a second.
        self._process.engine.routes_fed(link)
        self._process.wake()

    def subscribe(self, client: Client, command: Command, on_reply: Callable[[Reply], None]) -> None:
        """Carries out a SESSION.SUBSCRIBE.  `on_reply` gets one reply, however often this is called meanwhile."""
        if command not in self._subscribing:
            task = self._process.loop.create_task(self._subscribe(client, command, on_reply))
            self._subscribing[command] = task
            task.add_done_callback(lambda _task: self._subscribing.pop(command, None))

    async def _subscribe(self, client: Client, command: Command, on_reply: Callable[[Reply], None]) -> None:
        pairs = command.arguments[_PAIRS_AT:]
        if has_groups(pairs):
            reply = await self._groups.subscribe(client, pairs)
        else:
            reply = await self._routes.subscribe(client.session.key, client.session.epoch, pairs)
        self._subscribing.pop(command, None)  # the client may send the same again from now on
        on_reply(reply)
        if not isinstance(reply, hiredis.ReplyError):
            self._retained.begin(client, pairs, reply)

    def forget(self, client: Client) -> None:
        """The connection has ended."""
        self._retained.forget(client)
        self._groups.forget(client)

    # ---- groups ----------------------------------------------------------------------------------------------------

    def session_opened(self, client: Client, *, resumed: bool) -> None:
        """The client has its session, and the engine knows it."""
        self._groups.begin(client, resumed=resumed)
        if resumed:
            self._retained.resume(client)

    def member_event(self, event: Event) -> None:
        """An event of the engine about a connection that is no client's."""
        self._groups.event(event)

    @property
    def members_busy(self) -> int:
        """Members of groups that are being opened or closed."""
        return self._groups.busy

    def leaves_groups(self, command: Command) -> bool:
        """Whether it ends shared subscriptions: `unsubscribe` carries it out."""
        filters = command.arguments[_PAIRS_AT:] if command.kind in (Kind.UNSUBSCRIBE, Kind.REVOKE) else ()
        return any(is_of_group(topic_filter, "") for topic_filter in filters)

    def unsubscribe(self, client: Client, command: Command, on_reply: Callable[[Reply], None]) -> None:
        """Carries out a SESSION.UNSUBSCRIBE.  `on_reply` gets one reply, however often this is called meanwhile."""
        if command not in self._leaving:
            task = self._process.loop.create_task(self._unsubscribe(client, command, on_reply))
            self._leaving[command] = task
            task.add_done_callback(lambda _task: self._leaving.pop(command, None))

    async def _unsubscribe(self, client: Client, command: Command, on_reply: Callable[[Reply], None]) -> None:
        reply = await self._groups.unsubscribe(client, command.arguments[_PAIRS_AT:])
        if reply is None:
            reply = await self._nodes.ask_for(client.session.key, command.arguments)
        self._leaving.pop(command, None)  # the client may send the same again from now on
        on_reply(reply)
