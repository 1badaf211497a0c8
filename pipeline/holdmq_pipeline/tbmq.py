"""Reads what TBMQ stores for its clients, from its PostgreSQL tables or its Redis keyspace; once, in Spark's tasks.

A `Source` is a DataFrame whose partitions have all of a client, and the function that makes rows of a partition:

    client_id    clients one after the other: the client's own row, then its messages, the newest first
    serial       the order of the client's messages; in the client's own row OWN
    packet_id    0 if it has none yet; in the client's own row the identifier handed out last, 0 if unknown
    state        QUEUED, or RELEASED (QoS 2, PUBREC seen)
    lives_until  ms since 1970, 0: no limit of its own
    value        the record (src/topic/record.h), None if there is a problem
    problem      None, EXPIRED, OVERSIZED, or what could not be read

The tables are `device_publish_msg` and `device_session_ctx` of TBMQ 1.x. The keyspace is that of 2.x: a sorted set
`{client}_messages` of references, a string with JSON for each message, `{client}_last_packet_id`. The JSON has
`topicName` or `topic`, `retained` or `retain`; both are accepted. TBMQ must be stopped meanwhile: nothing here locks
anything.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from holdmq_pipeline.options import Options
from holdmq_pipeline.tbmq_messages import QUEUED, Message, message_of_json, message_of_row, records
from holdmq_pipeline.wire import Link, checked, command

EXPIRED, OVERSIZED = "expired", "oversized"
OWN = -1
PAGE = 1000
SCAN_COUNT = 5000
CLIENTS_TOGETHER = 200
MESSAGES_TOGETHER = 2000
MAX_PROBLEM = 200
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# In the order of the fields of a message.
MESSAGE_COLUMNS = (
    "topic", "payload", "time", "qos", "retain", "packet_type", "msg_expiry_interval", "user_properties",
    "payload_format_indicator", "content_type", "response_topic", "correlation_data",
)  # fmt: skip

Row = tuple[str, int, int, int, int, bytes | None, str | None]
"""As above."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for messages.

    Attributes:
        now_ms: decides what has expired.
        ttl_s: how long a message without an expiry of its own lives from its time on; 0: no limit. For the tables only:
            in a keyspace each string has its own time to live.
        max_bytes: of a record; a larger one is oversized.
    """

    now_ms: int
    ttl_s: int = 0
    max_bytes: int = 268_435_455


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a migration.

    Attributes:
        frame: all of a client are in one partition.
        read: makes rows of a partition, in lists of bounded length.
    """

    frame: DataFrame
    read: Callable[[Iterator[pa.RecordBatch]], Iterator[list[Row]]]


@dataclass(frozen=True, slots=True)
class Postgres:
    """The database.

    Attributes:
        url: as JDBC takes it, `jdbc:postgresql://host:5432/thingsboard_mqtt_broker`.
        user: who may read the tables.
        password: of the user.
        partitions: tasks that read at once, each some clients.
        messages_table: name of the table of messages.
        sessions_table: name of the table of sessions.
    """

    url: str
    user: str
    password: str = ""
    partitions: int = 8
    messages_table: str = "device_publish_msg"
    sessions_table: str = "device_session_ctx"

    def __post_init__(self) -> None:
        """Checks what becomes SQL.

        Raises:
            ValueError: no number of partitions or no name of a table.
        """
        if not 1 <= self.partitions <= 10_000:
            raise ValueError(f"partitions is {self.partitions}; expected 1..10000")
        for table in (self.messages_table, self.sessions_table):
            if not TABLE_NAME.fullmatch(table):
                raise ValueError(f"{table!r} is not a name of a table")

    def read(self, spark: SparkSession) -> DataFrame:
        """Both tables; all rows of a client are in one partition, its own first, then its messages from the newest on.

        The driver has to be among Spark's jars: Debian's libpostgresql-jdbc-java has it.
        """
        nothing = ", ".join("null" for _ in MESSAGE_COLUMNS)
        both = (
            f"(select client_id, serial_number, packet_id, {', '.join(MESSAGE_COLUMNS)} from {self.messages_table}"  # noqa: S608 - checked above
            f" union all select client_id, null, last_packet_id, {nothing} from {self.sessions_table}) as waiting"
        )
        tasks = [f"(hashtext(client_id) & 2147483647) % {self.partitions} = {i}" for i in range(self.partitions)]
        properties = {
            "user": self.user, "password": self.password, "driver": "org.postgresql.Driver", "fetchsize": "5000",
        }  # fmt: skip
        rows = spark.read.jdbc(self.url, both, predicates=tasks, properties=properties)
        return rows.sortWithinPartitions("client_id", f.desc_nulls_first("serial_number"))


def from_postgres(spark: SparkSession, database: Postgres, rules: Rules) -> Source:
    """The source that the tables are."""
    return Source(database.read(spark), partial(_of_tables, rules=rules))


def from_keyspace(spark: SparkSession, options: Options, rules: Rules, *, partitions: int = 8) -> Source:
    """The source that a keyspace is; `options` name the server and `keyPrefix`, TBMQ's cache prefix."""
    with Link(options) as link:
        nodes = len(link.primaries())

    def clients(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Link(options) as link:
            for batch in batches:
                for node in batch.column(0).to_pylist():
                    for suffix in ("_messages", "_last_packet_id"):
                        yield from _client_keys(link, node, options.text("keyPrefix"), suffix)

    found = spark.range(nodes, numPartitions=nodes).mapInArrow(clients, "client_id string")
    each = found.repartition(partitions, "client_id").dropDuplicates(["client_id"])
    return Source(each, partial(_of_keys, options=options, rules=rules))


# ---- rows ----


def _judged(
    heads: Sequence[tuple[str, int, int]], held: Sequence[Message], lives: Sequence[int], rules: Rules
) -> list[Row]:
    """Rows of messages: client, serial and packet identifier of each, and until when it lives."""
    now_ms = rules.now_ms
    over = [0 < until <= now_ms for until in lives]
    values = records(held) if not any(over) else _records_but(held, over)
    rows: list[Row] = []
    for (client_id, serial, packet_id), message, until, value in zip(heads, held, lives, values, strict=True):
        if not isinstance(value, bytes):
            rows.append((client_id, serial, packet_id, message.state, until, None, value))
        elif len(value) > rules.max_bytes:
            rows.append((client_id, serial, packet_id, message.state, until, None, OVERSIZED))
        else:
            rows.append((client_id, serial, packet_id, message.state, until, value, None))
    return rows


def _records_but(held: Sequence[Message], over: Sequence[bool]) -> list[bytes | str]:
    """Records of the messages that have not expired."""
    made = iter(records([message for message, late in zip(held, over, strict=True) if not late]))
    return [EXPIRED if late else next(made) for late in over]


def _of_tables(batches: Iterator[pa.RecordBatch], rules: Rules) -> Iterator[list[Row]]:
    for whole in batches:
        for at in range(0, whole.num_rows, MESSAGES_TOGETHER):
            yield _of_rows(whole.slice(at, MESSAGES_TOGETHER), rules)


def _of_rows(batch: pa.RecordBatch, rules: Rules) -> list[Row]:
    done: dict[int, Row] = {}
    heads, held, lives = [], [], []
    for at, row in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True)):
        client_id, serial, packet_id = row[:3]
        if serial is None:
            done[at] = (client_id, OWN, packet_id or 0, QUEUED, 0, None, None)
            continue
        try:
            message = message_of_row(row[3:])
        except ValueError as error:
            done[at] = (client_id, serial, packet_id or 0, QUEUED, 0, None, str(error)[:MAX_PROBLEM])
            continue
        heads.append((client_id, serial, packet_id or 0))
        held.append(message)
        lives.append(message.expires_ms or (message.time_ms + rules.ttl_s * 1000 if rules.ttl_s else 0))
    judged = _judged(heads, held, lives, rules)
    if not done:
        return judged
    rest = iter(judged)
    return [done[at] if at in done else next(rest) for at in range(batch.num_rows)]


def _of_keys(batches: Iterator[pa.RecordBatch], options: Options, rules: Rules) -> Iterator[list[Row]]:
    prefix = options.text("keyPrefix")
    with Link(options) as link:
        for batch in batches:
            clients = batch.column(0).to_pylist()
            for at in range(0, len(clients), CLIENTS_TOGETHER):
                yield from _of_clients(link, prefix, clients[at : at + CLIENTS_TOGETHER], rules)


@dataclass(slots=True)
class Page:
    """References of a queue, the newest first: each is a message, whose string is the member."""

    key: bytes
    client_id: str
    serials: list[int]
    members: list[bytes]

    def heads(self) -> list[tuple[str, int, int]]:
        """Client, serial and packet identifier, as the string's name has it."""
        before = len(self.key) + len(b"_messages_")
        return [
            (self.client_id, serial, int(one[before:])) for serial, one in zip(self.serials, self.members, strict=True)
        ]


def _of_clients(link: Link, prefix: str, clients: Sequence[str], rules: Rules) -> Iterator[list[Row]]:
    """Some clients: their references by one question for all, their messages by few."""
    keys = [f"{prefix}{{{client_id}}}".encode() for client_id in clients]
    asked = [(key, _page(key, 0)) for key in keys] + [(key, command("GET", key + b"_last_packet_id")) for key in keys]
    replies = checked(link.ask_all(asked))
    waiting: list[Row | Page] = []
    messages = 0
    for client_id, key, first, last in zip(clients, keys, replies[: len(keys)], replies[len(keys) :], strict=True):
        waiting.append((client_id, OWN, int(last or 0), QUEUED, 0, None, None))
        page, begin = first, 0
        while page:
            members, scores = zip(*scored(page), strict=True)
            waiting.append(Page(key, client_id, [int(float(score)) for score in scores], list(members)))
            messages += len(members)
            if messages >= MESSAGES_TOGETHER:
                yield _of_waiting(link, waiting, rules)
                waiting, messages = [], 0
            begin += PAGE
            page = checked(link.ask_all([(key, _page(key, begin))]))[0] if len(members) == PAGE else None
    yield _of_waiting(link, waiting, rules)


def _page(key: bytes, begin: int) -> bytes:
    """References from the newest on."""
    return command("ZREVRANGE", key + b"_messages", begin, begin + PAGE - 1, "WITHSCORES")


def _of_waiting(link: Link, waiting: Sequence[Row | Page], rules: Rules) -> list[Row]:
    pages = [one for one in waiting if isinstance(one, Page)]
    asked = [(page.key, command("MGET", *page.members)) for page in pages]
    asked += [(page.key, command("PTTL", member)) for page in pages for member in page.members]
    replies = checked(link.ask_all(asked))
    now_ms = int(time.time() * 1000)  # they were asked just now
    values = [value for reply in replies[: len(pages)] for value in reply]
    lives = [now_ms + ttl_ms if ttl_ms >= 0 else 0 for ttl_ms in replies[len(pages) :]]
    heads = [head for page in pages for head in page.heads()]
    made = _of_strings(heads, values, lives, rules)
    rows: list[Row] = []
    at = 0
    for one in waiting:
        if isinstance(one, Page):
            rows += made[at : at + len(one.members)]
            at += len(one.members)
        else:
            rows.append(one)
    return rows


def _of_strings(
    heads: Sequence[tuple[str, int, int]], values: Sequence[bytes | None], lives: Sequence[int], rules: Rules
) -> list[Row]:
    """Rows of TBMQ's JSON; None: the string is gone."""
    done: dict[int, Row] = {}
    held: list[Message] = []
    for at, value in enumerate(values):
        if value is None:
            done[at] = (*heads[at], QUEUED, 0, None, EXPIRED)
            continue
        try:
            held.append(message_of_json(value))
        except ValueError as error:
            done[at] = (*heads[at], QUEUED, lives[at], None, str(error)[:MAX_PROBLEM])
    if not done:
        return _judged(heads, held, lives, rules)
    good = [at for at in range(len(heads)) if at not in done]
    judged = iter(_judged([heads[at] for at in good], held, [lives[at] for at in good], rules))
    return [done[at] if at in done else next(judged) for at in range(len(heads))]


def scored(reply: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """Members and scores: pairs with RESP3, one after the other with RESP2."""
    return reply if isinstance(reply[0], (list, tuple)) else list(zip(reply[::2], reply[1::2], strict=True))


def _client_keys(link: Link, node: int, prefix: str, suffix: str) -> Iterator[pa.RecordBatch]:
    """The clients of a node that have such a key."""
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "{*}" + suffix
    client: Any = link.primaries()[node]
    cursor = 0
    while True:
        cursor, names = client.scan(cursor, match=pattern, count=SCAN_COUNT)
        texts = [bytes(name).decode()[len(prefix) + 1 : -len(suffix) - 1] for name in names]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["client_id"])
        if not cursor:
            return
