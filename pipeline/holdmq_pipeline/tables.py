"""The tables sessions, session_info, channels and patterns, read once.

Keys are found by their names. A task has a range of the 16384 hash slots, on one server as in a cluster. On one server
each task walks through all names and takes its own. In a cluster it requests the names of each slot.

A slot that moves from one node to another has names on both, and names move in one direction only. So every node is
asked twice, in the same order: a name that moves between the two requests of one round is found in the other round. The
value of a name is read from the node that has it then (`Link.ask` follows redirections).

These tables are not a snapshot: each key is read as a whole, or page by page, at its own moment.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdmq import core
from holdmq_pipeline import packed
from holdmq_pipeline.errors import PipelineError
from holdmq_pipeline.history_reader import without_collector
from holdmq_pipeline.options import Options
from holdmq_pipeline.wire import Link, as_map, range_key

__all__ = ["reader"]

SLOTS = 16_384
TASKS = 4
SCAN_COUNT = 5_000
NAMES_OF_A_SLOT = 1_000_000
TOGETHER = 100
PAGE = 1_000
PAGE_BYTES = 1 << 18
STATES = ("queued", "in flight", "released")

Row = dict[str, Any]


class SlotsPartition(InputPartition):
    """A task: slots first .. last."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))


def reader(options: Options, columns: tuple[str, ...]) -> DataSourceReader:
    """The reader of the table that the options name."""
    makers: dict[str, Callable[[Link, Options, int, int], Iterator[Row]]] = {
        "sessions": sessions,
        "session_info": session_info,
        "channels": channels,
        "patterns": patterns,
    }
    return TableReader(options, columns, makers[options.text("table")])


class TableReader(DataSourceReader):
    """Reads rows that a function makes of the keys in a range of slots."""

    def __init__(
        self,
        options: Options,
        columns: tuple[str, ...],
        make: Callable[[Link, Options, int, int], Iterator[Row]],
    ) -> None:
        self._options = options
        self._columns = columns
        self._make = make
        self._rows = options.required("fetchRows", 1, 100_000)
        self._tasks = 1 if options.text("table") == "patterns" else options.number("minPartitions", 1, SLOTS) or TASKS

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of slots, of equal size."""
        cuts = [SLOTS * task // self._tasks for task in range(self._tasks + 1)]
        return [SlotsPartition(first, end - 1) for first, end in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range of slots, in a task."""
        with Link(self._options) as link, without_collector():
            rows: list[Row] = []
            for row in self._make(link, self._options, *partition.value):
                rows.append(row)
                if len(rows) == self._rows:
                    yield packed.of_rows(self._columns, self._options.text("table"), rows)
                    rows = []
            yield packed.of_rows(self._columns, self._options.text("table"), rows)


def names(link: Link, first: int, last: int, of_type: str | None = None) -> Iterator[bytes]:
    """The names of all keys in these slots; some may come more than once."""
    if link.is_cluster:
        yield from _names_of_slots(link, first, last)
        return
    words = ("TYPE", of_type) if of_type else ()
    cursor = b"0"
    while True:
        cursor, found = link.ask(b"", "SCAN", cursor, "COUNT", SCAN_COUNT, *words)
        yield from (name for name in found if first <= core.slot_of(name) <= last)
        if int(cursor) == 0:
            return


def _names_of_slots(link: Link, first: int, last: int) -> Iterator[bytes]:
    for begin in range(first, last + 1, TOGETHER):
        slots = range(begin, min(begin + TOGETHER, last + 1))
        found: set[bytes] = set()
        for _round in range(2):
            link.forget()
            for node in link.primaries():
                pipeline = node.pipeline(transaction=False)
                for slot in slots:
                    # In two words, so that redis-py does not decode the names.
                    pipeline.execute_command("CLUSTER", "GETKEYSINSLOT", slot, NAMES_OF_A_SLOT)
                for slot, keys in zip(slots, pipeline.execute(), strict=True):
                    if len(keys) == NAMES_OF_A_SLOT:
                        raise PipelineError(f"slot {slot} has {NAMES_OF_A_SLOT} keys or more; expected fewer")
                    found.update(keys)
        yield from found


def _session_keys(link: Link, options: Options, first: int, last: int, suffixes: Sequence[core.Suffix]) -> list[bytes]:
    """The sessions in these slots that have a key with one of the suffixes."""
    prefix = options.text("keyPrefix").encode()
    clients = options.client_ids()
    if clients is not None:
        keys = [prefix + core.session_key(client) for client in clients]
        return [key for key in dict.fromkeys(keys) if first <= core.slot_of(key) <= last]
    of_type = "zset" if suffixes == [core.Suffix.MESSAGES] else None
    found = {
        key
        for name in names(link, first, last, of_type)
        for suffix in suffixes
        if (key := core.session_key_of(name, suffix)) is not None and key.startswith(prefix + b"{")
    }
    return sorted(found)


def _asked(link: Link, keys: Sequence[bytes], words: Callable[[bytes], Sequence[Any]]) -> Iterator[tuple[bytes, Any]]:
    """The reply to a command for each key; on one server many in a round trip."""
    for begin in range(0, len(keys), TOGETHER):
        several = keys[begin : begin + TOGETHER]
        if link.is_cluster:
            yield from ((key, link.ask(key, *words(key))) for key in several)
            continue
        pipeline = link.node(b"").pipeline(transaction=False)
        for key in several:
            pipeline.execute_command(*words(key))
        yield from zip(several, pipeline.execute(), strict=True)


def sessions(link: Link, options: Options, first: int, last: int) -> Iterator[Row]:
    """A row for each message that waits in a session, in the order of its queue."""

    def page(key: bytes, after: int = 0) -> Sequence[Any]:
        return ("SESSION.FETCH", key, "AFTER", after, "COUNT", PAGE, "BYTES", PAGE_BYTES)

    for key, reply in _asked(link, _session_keys(link, options, first, last, [core.Suffix.MESSAGES]), page):
        client = _text(core.client_id(key))
        entries, more, _expired = reply
        while True:
            for serial, packet_id, state, value in entries:
                yield {
                    "client_id": client,
                    "serial": serial,
                    "packet_id": packet_id,
                    "state": STATES[state],
                    **_message(value),
                }
            if not more or not entries:
                break
            entries, more, _expired = link.ask(key, *page(key, entries[-1][0]))


def _message(value: bytes) -> Row:
    """What a stored value says; one that is not a record of HoldMQ is a payload."""
    if not core.is_record(value):
        return {"payload": value}
    record = core.Record.decode(value)
    if record.type is core.RecordType.PUBREL:
        return {"published": record.time_ms * 1000}
    return {
        "topic": _text(record.topic),
        "payload": record.payload,
        "qos": record.qos,
        "retain": record.retain,
        "publisher": _text(record.publisher) or None,
        "properties": record.properties or None,
        "published": record.time_ms * 1000,
        "expires": record.expires_ms * 1000 or None,
    }


def session_info(link: Link, options: Options, first: int, last: int) -> Iterator[Row]:
    """A row for each session, opened or with messages alone."""
    suffixes = [core.Suffix.MESSAGES, core.Suffix.SESSION, core.Suffix.SUBSCRIPTIONS]
    keys = _session_keys(link, options, first, last, suffixes)
    for key, reply in _asked(link, keys, lambda key: ("SESSION.INFO", key)):
        found = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        info = {name.decode(): value for name, value in found.items()}
        yield {
            **info,
            "client_id": _text(core.client_id(key)),
            "exists": bool(info["exists"]),
            "connected": bool(info["connected"]),
            "owner": _text(info["owner"] or b"") or None,
            "expiry_s": info["expiry"],
        }


def channels(link: Link, options: Options, first: int, last: int) -> Iterator[Row]:
    """A row for each message that a channel's list holds, from the oldest on."""
    pattern = options.text("channelPattern")
    found = {name: core.channel_of_key(name) for name in names(link, first, last, "list")}
    held = {name: pair[0] for name, pair in found.items() if pair is not None and pair[1] is core.ChannelKey.HELD}
    wanted = sorted(name for name, channel in held.items() if core.glob_matches(pattern, channel))
    kinds = _asked(link, wanted, lambda key: ("TYPE", key))
    lists = [key for key, kind in kinds if kind == b"list"]
    for key, reply in _asked(link, lists, lambda key: ("LRANGE", key, 0, PAGE - 1)):
        begin, payloads = 0, reply
        while payloads:
            for at, payload in enumerate(payloads):
                yield {"channel": _text(held[key]), "index": begin + at, "payload": payload}
            begin += len(payloads)
            payloads = link.ask(key, "LRANGE", key, begin, begin + PAGE - 1) if len(payloads) == PAGE else []


def patterns(link: Link, options: Options, _first: int, _last: int) -> Iterator[Row]:
    """A row for each pattern of the current generation and shard."""
    info = link.store(options.text("store"))
    store = info[b"store"].decode()
    for shard in info[b"shard"]:
        number = shard[b"shard"]
        key = range_key(store, number)
        generation = link.ask(key, "HISTORY.PATTERNS", "GET", store, "SHARD", number)[0]
        for reply in link.ask(key, "HISTORY.PATTERNS", "STATS", store, "SHARD", number):
            found = as_map(reply)
            yield {
                "store": store,
                "shard": number,
                "generation": generation,
                "pattern": found[b"pattern"],
                "filter": _text(found[b"filter"]),
                "messages": found[b"messages"],
                "slots": found[b"slots"],
                "bits": list(found[b"bits"]) if isinstance(found[b"bits"], Iterable) else [found[b"bits"]],
            }


def _text(value: bytes) -> str:
    """As UTF-8; other bytes are shown with backslashes."""
    return value.decode("utf-8", "backslashreplace")
