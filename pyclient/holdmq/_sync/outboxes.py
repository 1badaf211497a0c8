# Generated from pyclient/holdmq/_async/outboxes.py by tools/generate_sync.py; change that file.
"""Wills and presence messages that wait in the outboxes of a cluster: publishes them to all nodes.

An outbox also names member sessions of groups whose client's session has ended: they are dropped.

Invariants:

1. The messages of a slot are published in their order, and removed when all slots have them.
2. What is published again, by this or another reader, is known to the slots that have it: the messages are numbered.
3. A slot that has moved since it was read keeps its messages for the next round.
"""

import contextlib

from holdmq import commands
from holdmq._sync.executor import Executor
from holdmq.errors import FencedError


def drain_outboxes(executor: Executor) -> int:
    """Empties the outboxes of all nodes; returns how many messages were removed."""
    removed = 0
    for node in executor.nodes.primaries():
        while True:
            rows = executor.nodes.ask(node, commands.outbox_read())
            count = 0
            for slot in dict.fromkeys(slot for slot, _number, _record in rows):
                messages = [(number, record) for of, number, record in rows if of == slot]
                published = [message for message in messages if not commands.outbox_is_end(message[1])]
                if published:
                    executor.execute(commands.outbox_publish(slot, published))
                for _number, body in messages:
                    if commands.outbox_is_end(body):
                        _end_member(executor, body)
                try:
                    count += executor.nodes.ask(node, commands.outbox_ack(slot, messages[-1][0]))
                except executor.nodes.passing:
                    continue
            removed += count
            if not count:
                break
    return removed


def _end_member(executor: Executor, body: bytes) -> None:
    with contextlib.suppress(FencedError):  # a later connection has it
        executor.execute(commands.outbox_end(body))
