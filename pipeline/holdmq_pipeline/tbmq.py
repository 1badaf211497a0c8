"""What TBMQ keeps for its clients, as DataFrames of records: from its PostgreSQL tables, or from its Redis keyspace.

Both sources give the same columns. `messages`, one row for each message that waits for a client:

    client_id    string   serial  long: the order of the client's messages
    packet_id    int      0 if it has none yet
    state        int      0 queued, 2 released (QoS 2, PUBREC seen)
    lives_until  long     ms since 1970, 0: no limit of its own
    topic        string   value   binary: the record (src/record.h), null if there is a problem
    problem      string   null, `expired`, `oversized`, or what could not be read

`sessions`: `client_id string, last_packet_id int`.

The tables are TBMQ 1.x's `device_publish_msg` and `device_session_ctx`; the keyspace is 2.x's: a sorted set
`{client}_messages` of references, a string with JSON for each message, `{client}_last_packet_id`. Its JSON has
`topicName` or `topic`, `retained` or `retain`; both are taken. TBMQ has to be stopped meanwhile: nothing here locks
anything.
"""

import base64
import binascii
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdmq import core
from holdmq.core.mqtt import InvalidPacketError, PacketType, Properties, encode_properties
from holdmq_pipeline.options import Options
from holdmq_pipeline.wire import Link

MESSAGES = (
    "client_id string, serial long, packet_id int, state int, lives_until long, topic string, value binary, "
    "problem string"
)
SESSIONS = "client_id string, last_packet_id int"
ARROW_MESSAGES = pa.schema(
    [("client_id", pa.string()), ("serial", pa.int64()), ("packet_id", pa.int32()), ("state", pa.int32()),
     ("lives_until", pa.int64()), ("topic", pa.string()), ("value", pa.binary()), ("problem", pa.string())]
)  # fmt: skip
EXPIRED, OVERSIZED = "expired", "oversized"
QUEUED, RELEASED = 0, 2
RELEASED_TYPES = ("PUBREL", "PUBREC")
MAX_PROBLEM = 200
PAGE = 1000
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
MESSAGE_COLUMNS = (
    "client_id", "serial_number", "topic", "time", "packet_id", "packet_type", "qos", "payload", "user_properties",
    "retain", "msg_expiry_interval", "payload_format_indicator", "content_type", "response_topic", "correlation_data",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rules:
    """What becomes of the messages.

    Attributes:
        now_ms: by which it is judged what has expired.
        ttl_s: how long a message without an expiry of its own lives from its time on; 0: no limit. For the tables only:
            in a keyspace each string has its own time to live.
        max_bytes: of a record; a larger one is oversized.
    """

    now_ms: int
    ttl_s: int = 0
    max_bytes: int = 268_435_455


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be migrated; the columns stand above."""

    messages: DataFrame
    sessions: DataFrame


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
            raise ValueError(f"partitions is {self.partitions}, expected 1..10000")
        for table in (self.messages_table, self.sessions_table):
            if not TABLE_NAME.fullmatch(table):
                raise ValueError(f"{table!r} is no name of a table")

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """A table; all rows of a client are in one partition.

        The driver has to be among Spark's jars: Debian's libpostgresql-jdbc-java has it.
        """
        tasks = [f"(hashtext(client_id) & 2147483647) % {self.partitions} = {i}" for i in range(self.partitions)]
        properties = {
            "user": self.user, "password": self.password, "driver": "org.postgresql.Driver", "fetchsize": "5000",
        }  # fmt: skip
        return spark.read.jdbc(self.url, table, predicates=tasks, properties=properties)


def from_postgres(spark: SparkSession, database: Postgres, rules: Rules) -> Source:
    """The source that the tables are."""
    rows = database.read(spark, database.messages_table).select(*MESSAGE_COLUMNS)
    sessions = database.read(spark, database.sessions_table).selectExpr(
        "client_id", "cast(coalesce(last_packet_id, 0) as int) as last_packet_id"
    )
    return Source(rows.mapInArrow(lambda batches: _of_rows(batches, rules), MESSAGES), sessions)


def from_keyspace(spark: SparkSession, options: Options, rules: Rules, *, partitions: int = 8) -> Source:
    """The source that a keyspace is; `options` name the server and `keyPrefix`, TBMQ's cache prefix."""
    with Link(options) as link:
        nodes = len(link.primaries())

    def scanned(suffix: str) -> DataFrame:
        def keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with Link(options) as link:
                for batch in batches:
                    for number in batch.column(0).to_pylist():
                        yield from _client_keys(link, number, options.text("keyPrefix"), suffix)

        found = spark.range(nodes, numPartitions=nodes).mapInArrow(keys, "client_id string")
        return found.distinct().repartition(partitions, "client_id")

    messages = scanned("_messages").mapInArrow(lambda batches: _of_keys(batches, options, rules), MESSAGES)
    counters = scanned("_last_packet_id").mapInArrow(lambda batches: _counters(batches, options), SESSIONS)
    return Source(messages, counters)


# ---- a message ----


@dataclass(frozen=True, slots=True)
class Message:
    """A message of TBMQ, wherever it lay; times in ms, the expiry interval in seconds."""

    topic: str
    payload: bytes
    time_ms: int
    qos: int
    retain: bool = False
    packet_type: str = "PUBLISH"
    expiry_s: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    payload_format: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None

    @property
    def state(self) -> int:
        """As `SESSION.IMPORT` has it."""
        return RELEASED if self.packet_type in RELEASED_TYPES else QUEUED

    @property
    def expires_ms(self) -> int:
        """By its own expiry interval; 0: never."""
        return 0 if self.expiry_s is None else min(self.time_ms + max(self.expiry_s, 0) * 1000, core.MAX_TIME_MS)

    def record(self) -> bytes:
        """The record that the session keeps.

        Raises:
            ValueError: no topic name, or a value that MQTT does not allow.
        """
        if self.state == RELEASED:
            return core.Record(core.RecordType.PUBREL, time_ms=self.time_ms).encode()
        core.check_topic_name(self.topic)
        return core.Record(
            qos=self.qos, retain=self.retain, time_ms=self.time_ms, expires_ms=self.expires_ms,
            topic=self.topic.encode(), properties=self._properties(), payload=self.payload,
        ).encode()  # fmt: skip

    def _properties(self) -> bytes:
        values = Properties(
            payload_format_indicator=self.payload_format,
            content_type=None if self.content_type is None else self.content_type.encode(),
            response_topic=None if self.response_topic is None else self.response_topic.encode(),
            correlation_data=self.correlation,
            user_properties=tuple((name.encode(), value.encode()) for name, value in self.user_properties),
        )
        return encode_properties(values, PacketType.PUBLISH)


def message_of_json(text: bytes) -> Message:
    """The message that a string of TBMQ's keyspace holds.

    Raises:
        ValueError: it is no such message.
    """
    try:
        fields = json.loads(text)
        topic = fields["topicName"] if "topicName" in fields else fields["topic"]
        correlation = fields.get("correlationData")
        return Message(
            topic=topic,
            payload=base64.b64decode(fields.get("payload") or "", validate=True),
            time_ms=int(fields["time"]),
            qos=int(fields["qos"]),
            retain=bool(fields.get("retained", fields.get("retain", False))),
            packet_type=fields["packetType"],
            expiry_s=fields.get("msgExpiryInterval"),
            user_properties=user_properties(fields.get("userProperties")),
            payload_format=fields.get("payloadFormatIndicator"),
            content_type=fields.get("contentType"),
            response_topic=fields.get("responseTopic"),
            correlation=None if correlation is None else base64.b64decode(correlation, validate=True),
        )
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError(f"no message as TBMQ keeps it: {error!r} in {text[:60]!r}") from error


def message_of_row(row: Mapping[str, Any]) -> Message:
    """The message that a row of the table holds.

    Raises:
        ValueError: its user properties are not what TBMQ writes.
    """
    return Message(
        topic=row["topic"],
        payload=row["payload"],
        time_ms=row["time"],
        qos=row["qos"],
        retain=bool(row["retain"]),
        packet_type=row["packet_type"] or "PUBLISH",
        expiry_s=row["msg_expiry_interval"],
        user_properties=user_properties(row["user_properties"]),
        payload_format=row["payload_format_indicator"],
        content_type=row["content_type"],
        response_topic=row["response_topic"],
        correlation=row["correlation_data"],
    )


def user_properties(value: Any) -> tuple[tuple[str, str], ...]:
    """Pairs, in order: from JSON text or what it held, `{"props": [{"key": ..., "value": ...}]}` or the list alone.

    Raises:
        ValueError: it is neither.
    """
    if not value:
        return ()
    held = json.loads(value) if isinstance(value, str) else value
    pairs = held.get("props") if isinstance(held, dict) else held
    if not isinstance(pairs, list) or not all(
        isinstance(pair, dict) and {"key", "value"} <= set(pair) for pair in pairs
    ):
        raise ValueError(f"user properties are {value!r:.80}, expected a list of objects with key and value")
    return tuple((str(pair["key"]), str(pair["value"])) for pair in pairs)


# ---- batches ----


def _judged(message: Message, lives_until: int, rules: Rules) -> tuple[int, int, str, bytes | None, str | None]:
    """State, lives_until, topic, value and problem of a message."""
    if lives_until and lives_until <= rules.now_ms:
        return message.state, lives_until, message.topic, None, EXPIRED
    try:
        value = message.record()
    except (ValueError, InvalidPacketError) as error:
        return message.state, lives_until, message.topic, None, str(error)[:MAX_PROBLEM]
    if len(value) > rules.max_bytes:
        return message.state, lives_until, message.topic, None, OVERSIZED
    return message.state, lives_until, message.topic, value, None


def _of_rows(batches: Iterator[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made: list[tuple[Any, ...]] = []
        for row in batch.to_pylist():
            head = (row["client_id"], row["serial_number"], row["packet_id"] or 0)
            try:
                message = message_of_row(row)
            except ValueError as error:
                made.append((*head, QUEUED, 0, row["topic"], None, str(error)[:MAX_PROBLEM]))
                continue
            until = message.expires_ms or (message.time_ms + rules.ttl_s * 1000 if rules.ttl_s else 0)
            made.append((*head, *_judged(message, until, rules)))
        yield batch_of(made, ARROW_MESSAGES)


def _of_keys(batches: Iterator[pa.RecordBatch], options: Options, rules: Rules) -> Iterator[pa.RecordBatch]:
    with Link(options) as link:
        for batch in batches:
            for client_id in batch.column(0).to_pylist():
                key = f"{options.text('keyPrefix')}{{{client_id}}}".encode()
                for page in queue_pages(link, key):
                    yield batch_of([_of_entry(client_id, entry, rules) for entry in page], ARROW_MESSAGES)


def _of_entry(client_id: str, entry: "Entry", rules: Rules) -> tuple[Any, ...]:
    head = (client_id, entry.serial, entry.packet_id)
    if entry.value is None:
        return (*head, QUEUED, 0, None, None, EXPIRED)
    until = int(time.time() * 1000) + entry.ttl_ms if entry.ttl_ms >= 0 else 0  # it was asked for just now
    try:
        message = message_of_json(entry.value)
    except ValueError as error:
        return (*head, QUEUED, until, None, None, str(error)[:MAX_PROBLEM])
    return (*head, *_judged(message, until, rules))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a queue as it lies in the keyspace; value None: its string is gone; ttl_ms -1: none."""

    serial: int
    packet_id: int
    value: bytes | None
    ttl_ms: int


def queue_pages(link: Link, key: bytes) -> Iterator[list[Entry]]:
    """The queue of a session key, in order, by stock commands: any server will do."""
    begin, name = 0, key + b"_messages"
    while True:
        page = link.ask(key, "ZRANGE", name, begin, begin + PAGE - 1, "WITHSCORES")
        if not page:
            return
        # Pairs with RESP3, one after the other with RESP2.
        pairs = page if isinstance(page[0], (list, tuple)) else list(zip(page[::2], page[1::2], strict=True))
        node = link.node(key)
        pipeline = node.pipeline(transaction=False)
        pipeline.mget([member for member, _ in pairs])
        for member, _ in pairs:
            pipeline.pttl(member)
        values, *ttls = pipeline.execute()
        yield [
            Entry(int(float(score)), int(member[len(name) + 1 :]), value, ttl)
            for (member, score), value, ttl in zip(pairs, values, ttls, strict=True)
        ]
        begin += PAGE


def _client_keys(link: Link, node: int, prefix: str, suffix: str) -> Iterator[pa.RecordBatch]:
    """The clients of a node that have such a key."""
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "{*}" + suffix
    schema = pa.schema([("client_id", pa.string())])
    client: Any = link.primaries()[node]
    cursor = 0
    while True:
        cursor, names = client.scan(cursor, match=pattern, count=PAGE)
        texts = [bytes(name).decode() for name in names]
        yield batch_of([(text[len(prefix) + 1 : -len(suffix) - 1],) for text in texts], schema)
        if not cursor:
            return


def _counters(batches: Iterator[pa.RecordBatch], options: Options) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("client_id", pa.string()), ("last_packet_id", pa.int32())])
    with Link(options) as link:
        for batch in batches:
            made = []
            for client_id in batch.column(0).to_pylist():
                key = f"{options.text('keyPrefix')}{{{client_id}}}".encode()
                text = link.ask(key, "GET", key + b"_last_packet_id") or b"0"
                made.append((client_id, int(text)))
            yield batch_of(made, schema)


def batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch of the schema."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
