"""The wrapped client object: sends a command once, to the server or to a node of a cluster, and parses its reply.

Invariants:

1. The client object is used by its shape (`execute_command`, `pipeline`, `pubsub`) and never changed.
2. Nothing is sent in a process that was forked after the first use.
3. An error of the library gets its class of `holdmq.errors`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from holdmq import _arguments as arguments
from holdmq._async.patience import AsyncPatience
from holdmq._guard import AsyncClientOwner, NotPickled
from holdmq._io import AsyncClient, async_check_client, async_nodes, async_reload, async_renew
from holdmq.commands import Command
from holdmq.errors import ArgumentError, HoldMQError, is_moving, translation
from holdmq.replies import Text

T = TypeVar("T")


class AsyncLink(NotPickled):
    """One client object with its locks and its cluster. For use by HoldMQ only.

    Args:
        client: the client object to wrap.
        moving_timeout: how many seconds a command waits for slots that move between nodes of a cluster.

    Attributes:
        owner: which process uses the client's connections.
    """

    shown_as = "AsyncHoldMQ"

    def __init__(self, client: AsyncClient, moving_timeout: float) -> None:
        async_check_client(client)
        self.client: Any = client
        self.moving_timeout = arguments.wait("moving_timeout", moving_timeout, above=True)
        self.owner = AsyncClientOwner("this client", client, renew=lambda: async_renew(client))
        self._translation = translation(client)

    @property
    def is_cluster(self) -> bool:
        """Whether the client is a cluster client."""
        return hasattr(self.client, "get_primaries")

    def check_process(self) -> None:
        """Refuses to use the connections of another process.

        Raises:
            ForkedError: another process has used this client, and its connections do not survive a fork.
        """
        self.owner.check()

    async def send(self, *words: Any, **options: Any) -> Any:
        """Sends a command of the server itself and returns the raw reply.

        Raises:
            ForkedError: another process has used this client.
        """
        self.owner.check()
        return await self.client.execute_command(*words, **options)

    async def execute_once(self, command: Command[T]) -> T:
        """Sends a command to the node that the library finds. Returns the parsed reply."""
        self.owner.check()
        with self._translation:
            reply = await self.client.execute_command(*command.words, **command.options)
        return command.parse(reply)

    async def execute_key(self, command: Command[T]) -> T:
        """Like `execute_once`, but waits while the slot moves or the session gives messages back."""
        patience = AsyncPatience(self.moving_timeout)
        while True:
            try:
                return await self.execute_once(command)
            except Exception as error:
                if not is_moving(error) or not await patience.wait():
                    raise

    async def execute_at(self, node: Any, command: Command[T]) -> T:
        """Sends a command once to one node of a cluster. Returns the parsed reply."""
        self.owner.check()
        with self._translation:
            reply = await self.client.execute_command(*command.words, target_nodes=node, **command.options)
        return command.parse(reply)

    async def execute_anywhere(self, command: Command[T]) -> T:
        """Sends a command that any node of a cluster can answer. Returns the parsed reply."""
        self.owner.check()
        with self._translation:
            reply = await self.client.execute_command(*command.words, **command.options, **await self.anywhere())
        return command.parse(reply)

    async def anywhere(self) -> dict[str, Any]:
        """The options that send a command without a key to any node of a cluster."""
        return {"target_nodes": (await self.cluster()).get_random_node()} if self.is_cluster else {}

    async def unknown(self, names: Sequence[str]) -> list[str]:
        """Returns the commands that the server does not know."""
        options = {"NEVER_DECODE": True, **await self.anywhere()}
        # In one word, so that redis-py does not take the reply for that of COMMAND.
        replies = await self.send("COMMAND INFO", *names, **options)
        return [name for name, reply in zip(names, replies, strict=True) if not reply]

    async def cluster(self) -> Any:
        """Returns the cluster client, after it has learned the nodes.

        Raises:
            ForkedError: another process has used this client.
        """
        self.owner.check()
        return await async_nodes(self.client)

    async def reload(self) -> None:
        """Makes the cluster client reload the table of slots.

        Raises:
            ForkedError: another process has used this client.
        """
        await async_reload(await self.cluster())

    def pubsub(self, node: Any = None) -> Any:
        """Returns a new pub/sub object, in a cluster for the given node.

        Raises:
            HoldMQError: the client has no pub/sub.
        """
        self.owner.check()
        if not hasattr(self.client, "pubsub"):
            raise HoldMQError(f"{type(self.client).__name__} has no pub/sub; use a client of one of the nodes")
        return self.client.pubsub() if node is None else self.client.pubsub(node=node)

    async def find_slot(self, channels: Sequence[Text]) -> None:
        """Makes the cluster client learn the node of the slot of shard channels.

        Raises:
            ArgumentError: the channels are in several slots.
        """
        cluster = await self.cluster()
        slots = {cluster.keyslot(channel) for channel in channels}
        if len(slots) > 1:
            raise ArgumentError(f"channels are of {len(slots)} slots; expected a common hash tag, as in {{tag}}.name")
        # A command with a key is redirected, from which the library learns; SSUBSCRIBE only fails.
        await cluster.execute_command("EXISTS", channels[0])
