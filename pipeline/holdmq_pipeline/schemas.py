"""The columns of each table, and the subset that a reader requested.

Spark does not tell a Python source which columns a query uses. With `.schema("topic string, timestamp timestamp")`,
only the named columns are read, sent and converted.
"""

from collections.abc import Sequence

from pyspark.sql.types import StructType

from holdmq_pipeline.errors import OptionError
from holdmq_pipeline.options import Options

__all__ = ["all_columns", "chosen", "column_types"]

HISTORY = (
    "shard int, offset long, timestamp timestamp, topic string, payload binary, qos byte, retain boolean, "
    "publisher string, properties binary, published timestamp, expires timestamp, pattern int, generation int"
)
HEADERS = (
    "content_type string, response_topic string, correlation_data binary, "
    "headers array<struct<key:string,value:string>>"
)
SESSIONS = (
    "client_id string, serial long, packet_id int, state string, topic string, payload binary, qos byte, "
    "retain boolean, publisher string, properties binary, published timestamp, expires timestamp"
)
SESSION_INFO = (
    "client_id string, exists boolean, owner string, epoch long, connected boolean, expiry_s long, messages long, "
    "first_serial long, last_serial long, last_packet_id int, subscriptions long, ttl_ms long"
)
CHANNELS = "channel string, index long, payload binary"
PATTERNS = (
    "store string, shard int, generation int, pattern int, filter string, messages long, slots int, bits array<int>"
)
TABLES = {
    "history": HISTORY,
    "sessions": SESSIONS,
    "session_info": SESSION_INFO,
    "channels": CHANNELS,
    "patterns": PATTERNS,
}


def all_columns(options: Options) -> str:
    """The columns of the table that the options name, as SQL writes them."""
    table = options.choice("table", tuple(TABLES))
    headers = f", {HEADERS}" if table == "history" and options.flag("includeHeaders") else ""
    return TABLES[table] + headers


def chosen(options: Options, schema: StructType) -> list[str]:
    """The names of the columns that a reader is to make, in order.

    Raises:
        OptionError: the table has no such column, or one of another type.
    """
    types = _types(all_columns(options))
    for field in schema.fields:
        if field.name not in types:
            raise OptionError(
                f"schema: the table {options.text('table')} has no column {field.name!r}; expected some of "
                f"{', '.join(types)}"
            )
        wanted, found = types[field.name], field.dataType.simpleString()
        if wanted != found:
            raise OptionError(f"schema: column {field.name} is {found}; expected {wanted}")
    return [field.name for field in schema.fields]


def column_types(table: str) -> dict[str, str]:
    """The columns of a table and their types, as Spark prints them."""
    return _types(TABLES[table])


def _types(text: str) -> dict[str, str]:
    pairs = (part.strip().split(" ", 1) for part in _split(text))
    return {name: _plain(type_name) for name, type_name in pairs}


def _plain(type_name: str) -> str:
    return {"long": "bigint", "byte": "tinyint"}.get(type_name, type_name)


def _split(text: str) -> Sequence[str]:
    """At commas outside of angle brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]
