"""The options of the data source, in one table: name, where it applies, default, meaning.

Names are those of Spark's Kafka source, where it has an option with that meaning. docs/pipeline.md shows this table (a
test compares the two). Spark passes names in lower case, so case does not matter. Everything is checked before anything
is sent. An unknown option is an error, because otherwise a mistyped one would be ignored.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdmq import ArgumentError, core
from holdmq.durations import Duration, whole_seconds
from holdmq.history_commands import Start, time_ms
from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.places import whole_path

__all__ = ["OPTIONS", "TABLES", "Option", "Options", "checked_filters", "timestamp_ms"]

TABLES = ("history", "sessions", "session_info", "channels", "patterns")
SINKS = ("topics", "channels", "sessions")
READ, STREAM, WRITE = "read", "stream", "write"
MAX_FILTERS = 32


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: as documented.
        used: in which of read, stream, write.
        default: as text, empty: none.
        meaning: a sentence.
    """

    name: str
    used: tuple[str, ...]
    default: str
    meaning: str


_EVERYWHERE = (READ, STREAM, WRITE)
_READING = (READ, STREAM)

OPTIONS = (
    Option(
        "url", _EVERYWHERE, "redis://127.0.0.1:6379", "URL of the server, as for redis-py, or of one node of a cluster"
    ),
    Option("passwordFile", _EVERYWHERE, "", "File with the password, on every machine that runs tasks"),
    Option("table", _EVERYWHERE, "history", f"Read: {', '.join(TABLES)}; write: {', '.join(SINKS)}"),
    Option("store", _READING, "", "The history store. Needed only if there are several"),
    Option(
        "topicFilter",
        _READING,
        "",
        "MQTT topic filter, or a JSON array of up to 32: messages that any of them matches. The index finds them",
    ),
    Option(
        "startingOffsets",
        _READING,
        "earliest",
        "`earliest`, `latest`, or JSON `{shard: next number to read}` with -2 for earliest and -1 for latest",
    ),
    Option(
        "endingOffsets",
        (READ,),
        "latest",
        "`latest`, or JSON `{shard: first number that is not read}` with -1 for latest",
    ),
    Option(
        "startingTimestamp",
        _READING,
        "",
        "Instead of startingOffsets: the first message at this time or later. ISO 8601, ms since 1970, or an age "
        "(`24h`, `7d`)",
    ),
    Option(
        "endingTimestamp", (READ,), "", "Instead of endingOffsets: the first time that is not read, in the same forms"
    ),
    Option(
        "maxOffsetsPerTrigger",
        (STREAM,),
        "",
        "Maximum number of sequence numbers in a batch, divided among the shards by how many each has left",
    ),
    Option("minPartitions", _READING, "", "Minimum number of tasks, if there are enough messages"),
    Option("maxRecordsPerPartition", _READING, "250000", "Maximum number of sequence numbers in a task"),
    Option(
        "failOnDataLoss",
        _READING,
        "true",
        "What happens if retention removed messages before they were read: true fails, false logs and counts them "
        "under groupId",
    ),
    Option(
        "groupId",
        (STREAM,),
        "",
        "Name under which the server remembers where `latest` was, what was lost, and what the group holds",
    ),
    Option(
        "hold",
        (STREAM,),
        "false",
        "true: neither trimming nor retention removes what the group `groupId` has not read, up to the store's "
        "HOLDBYTES",
    ),
    Option(
        "archive",
        (READ,),
        "",
        "Table of the job `archive`: archived messages that were trimmed meanwhile are read from it",
    ),
    Option(
        "includeHeaders",
        _READING,
        "false",
        "Adds the columns of MQTT 5.0 properties: content_type, response_topic, correlation_data, headers",
    ),
    Option(
        "pushFilters",
        (READ,),
        "false",
        "Comparisons of topic, timestamp, shard and offset in a query limit what is read (if "
        "spark.sql.python.filterPushdown.enabled is on)",
    ),
    Option("fetchRows", _READING, "10000", "Messages that one command reads, at most 100000"),
    Option("clientIds", (READ,), "", "Tables sessions and session_info: JSON array of client ids. Not set: all"),
    Option("keyPrefix", (READ, WRITE), "", "Prefix of the session keys (the cache prefix of TBMQ)"),
    Option("channelPattern", (READ,), "*", "Table channels: glob for their names"),
    Option(
        "idempotent",
        (WRITE,),
        "true",
        "true: a retried task repeats nothing. false: faster, but rows may be stored twice",
    ),
    Option(
        "idempotentBy",
        (WRITE,),
        "task",
        "How a repeated row is recognized. `task`: by its place in the task, `offset`: by the columns shard and offset",
    ),
    Option(
        "writeId",
        (WRITE,),
        "",
        "Batch writes: a write with the same id repeats nothing. Not set: each write has its own id",
    ),
    Option(
        "chunkRows",
        (WRITE,),
        "300000",
        "Messages that are sent before their replies are read, at most 300000, or 10000 of topics and channels, or "
        "24 MiB of them. A task begins with fewer. A repeated write needs the same value",
    ),
    Option("maxRowsPerSecond", (WRITE,), "", "Maximum messages per second of each task"),
    Option(
        "ttl",
        (WRITE,),
        "",
        "How long messages live: seconds, or an age such as `15m`, `24h`. The column ttl (seconds) wins",
    ),
    Option("limit", (WRITE,), "", "Table sessions: most messages of a queue"),
)
_PATHS = ("passwordFile", "archive")
"""Tasks run elsewhere than in the folder from which such a path may count."""
_BY_NAME = {option.name.lower(): option for option in OPTIONS}


class Options:
    """The options of one read or write, checked.

    Args:
        given: the options from Spark.
        used: read, stream or write; an option without a use there is refused.

    Raises:
        OptionError: an unknown option, or an invalid value.
    """

    def __init__(self, given: Mapping[str, str], used: str = READ) -> None:
        self.used = used
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() == "path" and value == "":
                continue
            option = _BY_NAME.get(name.lower())
            if option is None:
                raise OptionError(f"option {name!r} is unknown; expected some of {', '.join(o.name for o in OPTIONS)}")
            if used not in option.used:
                where = " and ".join(option.used)
                raise OptionError(f"option {option.name} does not apply to {used}; expected only for {where}")
            self._values[option.name] = whole_path(value) if option.name in _PATHS else value

    def __contains__(self, name: str) -> bool:
        return self._values.get(name, "") != ""

    def text(self, name: str) -> str:
        """The value, or the default."""
        value = self._values.get(name, "")
        return value if value != "" else _BY_NAME[name.lower()].default

    def flag(self, name: str) -> bool:
        """True or false.

        Raises:
            OptionError: it is neither.
        """
        text = self.text(name).lower()
        if text not in {"true", "false"}:
            raise OptionError(f"option {name} is {text!r}; expected true or false")
        return text == "true"

    def number(self, name: str, least: int = 1, most: int = 2**53) -> int | None:
        """A whole number, None if it was not given and has no default.

        Raises:
            OptionError: it is not a number, or out of range.
        """
        text = self.text(name)
        if not text:
            return None
        if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= most:
            raise OptionError(f"option {name} is {text!r}; expected a whole number from {least} to {most}")
        return int(text)

    def required(self, name: str, least: int = 1, most: int = 2**53) -> int:
        """A number that has a default."""
        value = self.number(name, least, most)
        if value is None:
            raise OptionError(f"option {name} is missing; expected a whole number from {least} to {most}")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these words.

        Raises:
            OptionError: it is not one of them.
        """
        text = self.text(name)
        if text not in allowed:
            raise OptionError(f"option {name} is {text!r}; expected one of {', '.join(allowed)}")
        return text

    def time_ms(self, name: str) -> int | None:
        """A time in ms since 1970, None if it was not given.

        Raises:
            OptionError: it is not a time.
        """
        return timestamp_ms(self.text(name), f"option {name}") if name in self else None

    def seconds(self, name: str, least: int, most: int) -> int | None:
        """A duration in seconds, None if it was not given: seconds, or a number with a unit.

        Raises:
            OptionError: it is not a number, or out of range.
        """
        text = self.text(name)
        if re.fullmatch(r"\d{1,18}(\.\d+)?", text, re.ASCII):
            return self._seconds(name, float(text), least, most)
        return self._seconds(name, text, least, most) if text else None

    @staticmethod
    def _seconds(name: str, value: Duration, least: int, most: int) -> int:
        try:
            return whole_seconds(f"option {name}", value, least, most)
        except ArgumentError as error:
            raise OptionError(str(error)) from error

    def topic_filters(self) -> tuple[str, ...]:
        """The topic filters, each once; none: everything.

        Raises:
            OptionError: one is not a topic filter, or there are too many.
        """
        if "topicFilter" not in self:
            return ()
        return checked_filters(_texts(self.text("topicFilter"), "topicFilter"), "option topicFilter")

    def client_ids(self) -> tuple[str, ...] | None:
        """The clients whose sessions are read; None: all."""
        return tuple(_texts(self.text("clientIds"), "clientIds")) if "clientIds" in self else None

    def offsets(self, name: str) -> str | dict[int, int]:
        """`earliest`, `latest`, or numbers by shard.

        Raises:
            OptionError: neither a word nor JSON of this form.
        """
        text = self.text(name)
        words = ("earliest", "latest") if name == "startingOffsets" else ("latest",)
        if text in words:
            return text
        expected = f'expected {" or ".join(words)}, or JSON like {{"0": 17, "1": -2}}'
        try:
            numbers = json.loads(text)
        except ValueError as error:
            raise OptionError(f"option {name} is {text!r}; {expected}") from error
        least = -2 if name == "startingOffsets" else -1
        if not isinstance(numbers, dict) or not all(
            re.fullmatch(r"\d{1,5}", shard) and type(number) is int and number >= least and number != 0
            for shard, number in numbers.items()
        ):
            raise OptionError(f"option {name} is {text!r}; {expected}")
        return {int(shard): number for shard, number in numbers.items()}


def checked_filters(filters: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """Topic filters as a job is given them (one, several, or None for everything), each once.

    Raises:
        OptionError: one is not a topic filter, or there are too many; `what` says where it was given.
    """
    several = dict.fromkeys([filters] if isinstance(filters, str) else filters or ())
    if len(several) > MAX_FILTERS:
        raise OptionError(f"{what} has {len(several)} filters; expected at most {MAX_FILTERS}")
    for text in several:
        try:
            shared = core.split_share(text)
        except ValueError as error:
            raise OptionError(f"{what} is {text!r}: {error}") from error
        if shared is not None:
            raise OptionError(f"{what} is {text!r}, a shared subscription; expected its inner filter")
    return tuple(several)


def timestamp_ms(value: Start, what: str) -> int:
    """A time as ms since 1970, in the forms that the Python client takes (docs/python.md); ages count from now, here.

    Raises:
        OptionError: it is not one of these, or a number that is probably a mistake.

    Example:
        >>> timestamp_ms("1973-04-26T00:00:00Z", "start"), timestamp_ms("1973-04-26 00:00:01.5", "start")
        (104630400000, 104630401500)
    """
    try:
        return time_ms(what, value, time.time_ns() // 1_000_000) or 0
    except ArgumentError as error:
        raise OptionError(str(error)) from error


def _texts(text: str, name: str) -> list[str]:
    """A text, or a JSON array of texts."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        several: Any = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name} is {text!r}; expected one, or a JSON array of them") from error
    if not isinstance(several, list) or not several or not all(isinstance(one, str) and one for one in several):
        raise OptionError(f"option {name} is {text!r}; expected one, or a JSON array of them, none empty")
    return list(several)
