"""The commands `holdmq history …`: stores, their contents, and replays of them."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import click

from holdmq._sync.client import HoldMQ
from holdmq._sync.replay import Replay
from holdmq.cli_change import changing
from holdmq.cli_output import Group, Seconds, content, limited, output
from holdmq.errors import HoldMQWarning
from holdmq.history_replies import HistoryMessage, HistoryPolicy, ShardInfo

SUFFIXES = {"": 1, "k": 2**10, "M": 2**20, "G": 2**30}
POLICY = ("store", "filters", "shards", "age", "max_bytes", "hold_bytes", "levels", "epoch", "learn")
SHARD = ("shard", "messages", "first", "last", "bytes", "generation", "trimmed", "holds")


class Amount(click.ParamType[int]):
    """Bytes: a whole number, with a suffix or without (`64k`, `512M`, `2G`)."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        if isinstance(value, int):
            return value
        digits = value.rstrip("".join(SUFFIXES))
        suffix = value[len(digits) :]
        if not digits.isdecimal() or suffix not in SUFFIXES:
            self.fail(f"{value!r}; expected a whole number, which k, M or G may follow", param, ctx)
        return int(digits) * SUFFIXES[suffix]


SECONDS = Seconds()
BYTES = Amount()


@click.group(cls=Group)
def history() -> None:
    """Keep messages in history stores, and replay them by any topic filter."""


@history.command("stores")
@click.pass_obj
def stores(hold: HoldMQ) -> None:
    """List the stores with their filters and limits."""
    output().rows(POLICY, (policy_row(policy) for policy in hold.history.stores()))


@history.command("create")
@click.argument("store")
@click.argument("filters", nargs=-1, required=True)
@click.option("--shards", type=click.IntRange(1), help="Number of shards. It never changes.  [default: 1]")
@click.option("--age", type=SECONDS, help="How long messages can be read, such as 24h or 7d. 0: forever.")
@click.option("--max-bytes", type=BYTES, help="Memory that the store may take, such as 512M. 0: no limit.")
@click.option("--hold-bytes", type=BYTES, help="Additional memory for messages that readers hold back.")
@click.option("--levels", type=click.IntRange(1), help="Number of topic levels that are indexed. It never changes.")
@click.option("--epoch", type=SECONDS, help="Time after which a shard begins a new epoch.")
@click.option("--learn", type=SECONDS, help="Interval between two searches for a better pattern set. 0: never.")
@click.option("--replace-filters", is_flag=True, help="Replace the filters of an existing store by FILTERS.")
@click.pass_obj
@changing
def create(hold: HoldMQ, /, store: str, filters: tuple[str, ...], replace_filters: bool, **settings: Any) -> None:
    """Create or change STORE, which keeps messages of the topics that FILTERS match."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HoldMQWarning)
        hold.history.create(store, *filters, **settings, replace_filters=True if replace_filters else None)
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)


@history.command("drop")
@click.argument("store")
@click.confirmation_option(prompt="Remove the store with all its messages?")
@click.pass_obj
@changing
def drop(hold: HoldMQ, store: str) -> None:
    """Remove STORE with all its messages."""
    hold.history.store(store).drop()


@history.command("info")
@click.argument("store")
@click.pass_obj
def info(hold: HoldMQ, store: str) -> None:
    """Show the shards of STORE, with their messages and the readers that hold messages back."""
    output().rows(SHARD, (shard_row(shard) for shard in hold.history.store(store).info().shards))


@history.command("replay")
@click.argument("topic_filter")
@click.option("--store", help="Store to read. Needed only if several stores keep matching topics.")
@click.option(
    "--from", "start", default="earliest", show_default=True, help="Start: a time, or an age such as 15m, 24h or 7d."
)
@click.option("--to", "end", help="End: a time, or an age.")
@click.option("--cursor", help="Continue at this cursor, which --cursors has printed.")
@click.option("--count", type=click.IntRange(1), help="Maximum number of messages shown.")
@click.option("--follow", is_flag=True, help="Continue with new messages until Ctrl-C.")
@click.option("--cursors", is_flag=True, help="Show the cursor after each message.")
@click.pass_obj
def replay(hold: HoldMQ, /, topic_filter: str, follow: bool, count: int | None, cursors: bool, **options: Any) -> None:
    """Show the kept messages whose topics TOPIC_FILTER matches, one per line."""
    with replay_of(hold, topic_filter, follow, **options) as messages:
        names = ("time", "topic", "payload", "publisher", "qos", "retain", "shard", "sequence")
        output().rows((*names, "cursor") if cursors else names, message_rows(messages, count, cursors))


@history.command("append")
@click.argument("store")
@click.argument("topic")
@click.argument("payload")
@click.option("--qos", type=click.IntRange(0, 2), default=0, show_default=True)
@click.pass_obj
@changing
def append(hold: HoldMQ, store: str, topic: str, payload: str, qos: int) -> None:
    """Keep PAYLOAD without publishing it, and print its shard and number. PAYLOAD `-`: standard input."""
    output().fields(dataclasses.asdict(hold.history.store(store).append(topic, content(payload), qos=qos)))


@history.command("trim")
@click.argument("store")
@click.argument("shard", type=click.IntRange(0))
@click.argument("sequence", type=click.IntRange(0))
@click.pass_obj
@changing
def trim(hold: HoldMQ, store: str, shard: int, sequence: int) -> None:
    """Remove the messages of SHARD up to SEQUENCE, and print the first number that is left."""
    output().value("first", hold.history.store(store).trim(shard, sequence))


@history.command("release")
@click.argument("store")
@click.argument("reader")
@click.pass_obj
@changing
def release(hold: HoldMQ, store: str, reader: str) -> None:
    """Release what READER holds back in STORE."""
    hold.history.store(store).release(reader)


@history.command("check")
@click.argument("store")
@click.option("--shard", type=click.IntRange(0), help="Check this shard only.")
@click.option("--epoch", type=click.IntRange(1), help="Number of the epoch.  [default: the current epoch]")
@click.pass_obj
def check(hold: HoldMQ, store: str, shard: int | None, epoch: int | None) -> None:
    """Compare the index of STORE with its messages. Exit status 1 if they differ."""
    differences = hold.history.store(store).check(shard, epoch=epoch)
    output().rows(("difference",), ((one,) for one in differences))
    if differences:
        sys.exit(1)


@history.command("patterns")
@click.argument("store")
@click.option("--propose", is_flag=True, help="Show the pattern set that the server proposes instead.")
@click.pass_obj
def patterns(hold: HoldMQ, store: str, propose: bool) -> None:
    """Show the patterns by which STORE keeps its messages."""
    of_store = hold.history.store(store).patterns
    if propose:
        output().fields(dataclasses.asdict(of_store.propose()))
        return
    rows = ((one.pattern, one.filter, one.messages, one.slots) for one in of_store.stats())
    output().rows(("pattern", "filter", "messages", "slots"), rows)


def replay_of(hold: HoldMQ, topic_filter: str, follow: bool, **options: Any) -> Replay:
    """The replay that the options ask for."""
    store, end = options.pop("store"), options.pop("end")
    source = hold.history if store is None else hold.history.store(store)
    if follow and end is not None:
        raise click.UsageError("--follow never ends; expected no --to")
    if follow:
        return source.follow(topic_filter, **options)
    return source.start_replay(topic_filter, end=end, **options)


def message_rows(messages: Replay, count: int | None, cursors: bool) -> Iterator[Sequence[Any]]:
    """The messages as rows."""
    for message in limited(messages, count):
        yield (*message_row(message), messages.cursor) if cursors else message_row(message)


def message_row(message: HistoryMessage) -> tuple[Any, ...]:
    """A message as a row."""
    head = (message.time, message.topic, message.payload, message.publisher)
    return (*head, message.qos, message.retain, message.shard, message.sequence)


def policy_row(policy: HistoryPolicy) -> Sequence[Any]:
    """A policy as a row; its filters with blanks between them."""
    fields = {**dataclasses.asdict(policy), "filters": " ".join(policy.filters)}
    return [fields[name] for name in POLICY]


def shard_row(shard: ShardInfo) -> Sequence[Any]:
    """A shard as a row; who holds it, and who was lost."""
    held = (f"{reader}={number}" for reader, number in shard.holds.items())
    lost = (f"{reader}=lost {number}" for reader, number in shard.lost.items())
    numbers = (shard.shard, shard.messages, shard.first, shard.last, shard.bytes, shard.generation, shard.trimmed)
    return (*numbers, ", ".join(chain(held, lost)))
