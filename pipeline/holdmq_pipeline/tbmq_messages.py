"""A message of TBMQ, from either source, and the records that sessions store (src/topic/record.h).

C makes the records, a batch in one call, as for the sink (holdmq.core.batch). If a batch has a message that makes no
record, its messages are checked one by one: `records` says for each what is wrong with it.
"""

import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hiredis import Reader

from holdmq import core
from holdmq.core.batch import InvalidRowError, MessageBatch, Texts
from holdmq.core.mqtt import PacketType, Properties, encode_properties

QUEUED, RELEASED = 0, 2
RELEASED_TYPES = ("PUBREL", "PUBREC")
MAX_PROBLEM = 200
KNOWN_TOPICS = 100_000
FAULTS = (ValueError, TypeError, AttributeError, OverflowError)
"""What a message raises that cannot be encoded: JSON can have anything anywhere."""
HEAD_WORDS = 3
"""Of the command that is made of a batch: SESSION.ADD key MESSAGES record ..."""


class Message(NamedTuple):
    """A message of TBMQ, in the order of the table's columns; times in ms, the expiry interval in seconds."""

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
            topic=self.topic.encode(), properties=self.properties(), payload=self.payload,
        ).encode()  # fmt: skip

    def properties(self) -> bytes:
        """Those of MQTT 5.0, encoded; empty if there are none."""
        if not any(self[7:]) and self.payload_format is None:
            return b""
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
        ValueError: it is not such a message.
    """
    try:
        fields = _fields(text)
        correlation = fields.get("correlationData")
        pairs = fields.get("userProperties")
        return Message(
            fields["topicName"] if "topicName" in fields else fields["topic"],
            binascii.a2b_base64(fields.get("payload") or "", strict_mode=True),
            int(fields["time"]),
            int(fields["qos"]),
            bool(fields.get("retained", fields.get("retain", False))),
            fields["packetType"],
            fields.get("msgExpiryInterval"),
            user_properties(pairs) if pairs else (),
            fields.get("payloadFormatIndicator"),
            fields.get("contentType"),
            fields.get("responseTopic"),
            None if correlation is None else binascii.a2b_base64(correlation, strict_mode=True),
        )
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError(f"no message as TBMQ keeps it: {error!r} in {text[:60]!r}") from error


_scan = json.JSONDecoder().raw_decode


def _fields(text: bytes) -> Any:
    """What the JSON says: in one step, if it is what programs write, UTF-8 with nothing around it."""
    try:
        decoded = text.decode()
        fields, end = _scan(decoded)
    except ValueError:
        return json.loads(text)
    return fields if end == len(decoded) else json.loads(text)


def message_of_row(values: Sequence[Any]) -> Message:
    """The message that a row of the table holds, in the order of the fields.

    Raises:
        ValueError: its user properties are not what TBMQ writes.
    """
    topic, payload, time_ms, qos, retain, packet_type, expiry_s, pairs, *further = values
    return Message(
        topic, payload, time_ms, qos, bool(retain), packet_type or "PUBLISH", expiry_s,
        user_properties(pairs) if pairs else (), *further,
    )  # fmt: skip


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
        raise ValueError(f"user properties are {value!r:.80}; expected a list of objects with key and value")
    return tuple((str(pair["key"]), str(pair["value"])) for pair in pairs)


# ---- records ----


def records(messages: Sequence[Message]) -> list[bytes | str]:
    """The record of each message, or (a text) why it makes none."""
    # C's columns are for messages that were published, and its time 0 means now.
    apart = [m.packet_type in RELEASED_TYPES or not m.time_ms for m in messages]
    if any(apart):
        rest = iter(records([m for m, other in zip(messages, apart, strict=True) if not other]))
        return [_one(m) if other else next(rest) for m, other in zip(messages, apart, strict=True)]
    try:
        return list(_packed(messages)) if messages else []
    except FAULTS:  # at least one of them is at fault: which?
        return [_one(message) for message in messages]


def _one(message: Message) -> bytes | str:
    try:
        return message.record()
    except FAULTS as error:
        return str(error)[:MAX_PROBLEM]


_topics: dict[str, bytes] = {}
"""Topic names that were looked at, as bytes: messages have few different ones."""


def _topic(name: str) -> bytes:
    known = _topics.get(name)
    if known is None:
        core.check_topic_name(name)
        if len(_topics) >= KNOWN_TOPICS:
            _topics.clear()
        known = _topics[name] = name.encode()
    return known


def _packed(messages: Sequence[Message]) -> list[bytes]:
    """All records by one call.

    Raises:
        ValueError: one of them makes no record; with JSON of other types than expected also others of `FAULTS`.
    """
    rows = len(messages)
    topic, payload, time_ms, qos, retain, _type, expiry, *_ = zip(*messages, strict=True)
    texts = {
        "client": Texts(b"c" * rows, np.arange(rows + 1, dtype=np.int32)),  # the key of a session, not of interest
        "topic": _texts([_topic(name) for name in topic]),
        "payload": _texts(payload),
    }
    if any(any(message[7:]) or message.payload_format is not None for message in messages):
        texts["properties"] = _texts([message.properties() for message in messages])
    numbers: dict[str, Sequence[int]] = {"qos": qos, "retain": retain, "time_ms": time_ms}
    if any(one is not None for one in expiry):
        numbers["expires_ms"] = [message.expires_ms for message in messages]
    columns = {name: np.array(values, np.int64) for name, values in numbers.items()}
    batch = MessageBatch(rows, texts, columns, first_number=1, now_ms=0)
    groups = batch.group(np.zeros(rows, np.int32), 1, rows)
    reader = Reader()
    reader.feed(bytes(batch.session_adds(groups, [(b"", 0, groups.count)]).data))
    found: list[bytes] = reader.gets()[HEAD_WORDS:]
    if len(found) != rows:
        raise InvalidRowError(len(found))
    return found


def _texts(values: Sequence[bytes]) -> Texts:
    column = pa.array(values, pa.binary())
    if column.null_count:
        raise ValueError("a message without topic or payload")
    _, offsets, data = column.buffers()
    return Texts(data or b"", offsets)
