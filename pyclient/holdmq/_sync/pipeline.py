# Generated from pyclient/holdmq/_async/pipeline.py by tools/generate_sync.py; change that file.
"""Commands that are sent together in one round trip."""

from typing import Any, Generic, TypeVar, cast

from holdmq import _arguments as arguments
from holdmq._guard import Guard, NotCopied
from holdmq._sync.link import Link
from holdmq.commands import Command, Scope
from holdmq.errors import ArgumentError, HoldMQError, translate, translation

T = TypeVar("T")

MAX_PIPELINE = 10_000
"""The maximum number of commands in a pipeline."""


class Reply(Generic[T]):
    """The future reply of a queued command. It belongs to the thread and the process of its pipeline.

    Attributes:
        command: the queued command.
        error: the error that came instead of a result, if any.
        done: whether the command was executed and its outcome is known.
    """

    def __init__(self, command: Command[T]) -> None:
        self.command = command
        self._result: T | None = None
        self.error: Exception | None = None
        self.done = False

    def result(self) -> T:
        """Returns the parsed reply.

        Raises:
            CommandError: the module refused the command.
            HoldMQError: the pipeline has not been executed.
        """
        if not self.done:
            raise HoldMQError("the pipeline has not been executed")
        if self.error is not None:
            raise self.error
        return cast("T", self._result)

    def settle(self, reply: object) -> None:
        """Takes the raw reply or the exception that came instead. For use by HoldMQ only."""
        try:
            if isinstance(reply, Exception):
                self.error = translate(reply)
            else:
                self._result = self.command.parse(reply)
        except HoldMQError as error:
            self.error = error
        self.done = True


class Pipeline(NotCopied):
    """Sends commands together; made by `HoldMQ.pipeline`. One thread of one process uses it at a time.

    Examples:
        >>> from holdmq import commands
        >>> pipeline = hold.pipeline()
        >>> added = pipeline.queue(commands.session_add("device-2", [b"on", b"off"]))
        >>> last = pipeline.queue(commands.session_last("device-2"))
        >>> replies = pipeline.execute()
        >>> added.result().packet_ids, last.result()
        ((1, 2), 2)
    """

    def __init__(self, link: Link, transaction: bool) -> None:
        if arguments.flag("transaction", transaction) and _decodes(link.client):
            raise ArgumentError("transaction is True; expected False with a client that has decode_responses=True")
        self._link = link
        self._transaction = bool(transaction)
        self._replies: list[Reply[Any]] = []
        self._guard = Guard("the pipeline", now=False)

    def queue(self, command: Command[T]) -> Reply[T]:
        """Queues a command built by `holdmq.commands`. Its reply is available after `execute`.

        Raises:
            ArgumentError: the pipeline is full, or the command would go to several nodes of a cluster.
            ForkedError: another process queued commands.
            ConcurrentUseError: another thread is using the pipeline.
        """
        arguments.instance("command", command, Command)
        with self._guard:
            return self._queue(command)

    def _queue(self, command: Command[T]) -> Reply[T]:
        if len(self._replies) >= MAX_PIPELINE:
            raise ArgumentError(f"{MAX_PIPELINE} commands are queued; expected an execute() before the next")
        if command.scope is not Scope.KEY and self._link.is_cluster:
            raise ArgumentError(f"{command.words[0]!r} has no key; expected one that has for a pipeline to a cluster")
        reply = Reply(command)
        self._replies.append(reply)
        return reply

    def execute(self, *, raise_on_error: bool = True) -> list[Reply[Any]]:
        """Sends the queued commands and returns their replies in order. The pipeline is empty afterwards.

        Args:
            raise_on_error: whether to raise the first error, after all replies were read. Otherwise each reply keeps
                its own error.

        Raises:
            CommandError: the module refused a command. The commands after it were carried out.
            ForkedError: another process queued commands.
            ConcurrentUseError: another thread is using the pipeline.
        """
        arguments.flag("raise_on_error", raise_on_error)
        with self._guard:
            return self._execute(raise_on_error=raise_on_error)

    def _execute(self, *, raise_on_error: bool) -> list[Reply[Any]]:
        replies, self._replies = self._replies, []
        if not replies:
            return []
        self._link.check_process()
        # One list alone says what is queued, so that an interrupt cannot leave a command without its reply.
        raw = self._link.client.pipeline(transaction=self._transaction)
        for reply in replies:
            raw.execute_command(*reply.command.words, **reply.command.options)
        with translation(self._link.client):
            answers = raw.execute(raise_on_error=False)
        for reply, answer in zip(replies, answers, strict=True):
            reply.settle(answer)
        if raise_on_error:
            for reply in replies:
                reply.result()
        return replies


def _decodes(client: Any) -> bool:
    """Whether the client has decode_responses=True."""
    encoder = client.get_encoder() if hasattr(client, "get_encoder") else client.connection_pool.get_encoder()
    return bool(encoder.decode_responses)
