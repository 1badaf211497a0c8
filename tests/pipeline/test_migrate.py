"""Migrations from a real PostgreSQL with TBMQ's tables, and from a keyspace as TBMQ lays it out."""

import base64
import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis

from holdmq.core import Record, RecordType
from holdmq.core.mqtt import decode_properties
from holdmq_pipeline.jobs.migrate import MigrationOptions, MigrationRefusedError, migrate
from holdmq_pipeline.options import Options
from holdmq_pipeline.session_compare import compare
from holdmq_pipeline.session_import import TO_IMPORT, import_queues
from holdmq_pipeline.session_plan import PIECE_MESSAGES, Target, planned
from holdmq_pipeline.tbmq import Postgres, Row, Rules, Source, from_keyspace, from_postgres
from holdmq_pipeline.tbmq_messages import Message, message_of_json
from tests.pipeline.postgres import PASSWORD, PROGRAMS, PostgresServer
from tests.pipeline.test_cli import figures, holdmq, refused
from tests.support import Cluster, Server, embedded_kinds
from tests.support.pages import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

server_kinds = embedded_kinds

NOW_MS = int(time.time() * 1000)
CLIENTS, EACH = 40, 25
# The tables of TBMQ 1.x, column by column, and what lies in them: many clients, then one for each special case.
TABLES = """
create table device_session_ctx (client_id character varying(255) not null, last_updated_time bigint not null,
  last_serial_number bigint, last_packet_id integer, primary key (client_id));

create table device_publish_msg (client_id character varying(255) not null, serial_number bigint not null,
  topic character varying not null, time bigint not null, packet_id integer, packet_type character varying(255),
  qos integer not null, payload bytea not null, user_properties character varying, retain boolean,
  msg_expiry_interval integer, payload_format_indicator integer, content_type character varying(255),
  response_topic character varying(255), correlation_data bytea, primary key (client_id, serial_number));

"""
MANY = f"""
insert into device_session_ctx select 'device-' || c, {NOW_MS}, {EACH}, {EACH} from generate_series(1, {CLIENTS}) c;

insert into device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, retain)
  select 'device-' || c, n, 'devices/' || c || '/t', {NOW_MS} + n, n, 'PUBLISH', 1 + n % 2,
         convert_to('value ' || c || ' ' || n, 'UTF8'), false
  from generate_series(1, {CLIENTS}) c, generate_series(1, {EACH}) n;

"""  # noqa: S608 - numbers of this file
SPECIAL = f"""
insert into device_session_ctx values ('wrapped', {NOW_MS}, 65537, 2), ('idle {{1}}', {NOW_MS}, 9, 9);

insert into device_publish_msg values
  ('wrapped', 65534, 'w', {NOW_MS}, 65534, 'PUBREL', 2, '', null, false, null, null, null, null, null),
  ('wrapped', 65535, 'w', {NOW_MS}, 65535, 'PUBLISH', 2, 'a', null, true, 3600, 1, 'text', 'reply', 'id'),
  ('wrapped', 65536, 'w', {NOW_MS}, 1, 'PUBLISH', 1, 'b',
   '{{"props":[{{"key":"k","value":"v"}},{{"key":"k","value":"w"}}]}}', false, null, null, null, null, null),
  ('wrapped', 65537, 'w', {NOW_MS} - 5000, 2, 'PUBLISH', 1, 'too late', null, false, 3, null, null, null, null);

"""  # noqa: S608 - numbers of this file
UNFIT = f"""
insert into device_publish_msg values
  ('wrapped', 65538, 'w', {NOW_MS}, 3, 'PUBLISH', 1, convert_to(repeat('x', 5000), 'UTF8'), null, false, null, null,
   null, null, null),
  ('wrapped', 65539, 'w/+', {NOW_MS}, 4, 'PUBLISH', 1, 'c', null, false, null, null, null, null, null);

"""  # noqa: S608 - numbers of this file
FIT = MigrationOptions(skip_unfit=True)


def target_of(server: Server, **options: Any) -> Target:
    return Target(Options({"url": server.url}), **options)


def queue(client: redis.Redis, client_id: str) -> list[tuple[int, int, int, Record]]:
    """Serial, packet identifier, state and record of each message, by a command of the module."""
    entries: Any = client.execute_command("SESSION.FETCH", f"{{{client_id}}}", "COUNT", 10000)[0]
    return [(serial, packet_id, state, Record.decode(value)) for serial, packet_id, state, value in entries]


@pytest.fixture(scope="module")
def postgres(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    # Spark finds no class in a JAR that it adds from a path with a space, as the checkout's may be.
    driver = shutil.copy((PROGRAMS / "jdbc.jar").resolve(), tmp_path_factory.mktemp("jdbc"))
    with PostgresServer(TABLES + MANY + SPECIAL + UNFIT) as running:
        spark.sql(f"ADD JAR '{driver}'")
        yield Postgres(running.url, "postgres", PASSWORD, partitions=3)


def test_the_tables_of_tbmq_become_sessions_with_identifiers_and_order_kept(
    spark: "SparkSession", postgres: Postgres, server: Server, client: redis.Redis
) -> None:
    source = from_postgres(spark, postgres, Rules(NOW_MS, max_bytes=4000))

    with pytest.raises(MigrationRefusedError, match=r"1 oversized and 1 unreadable messages; .* wrapped 6553"):
        migrate(source, target_of(server), execute=True)
    assert client.dbsize() == 0

    filters = spark.createDataFrame([("wrapped", "w/#", 2)], "client_id string, filter string, qos int")
    done = migrate(source, target_of(server), execute=True, subscriptions=filters, options=FIT)
    report = done.dry_run
    assert (report.clients, report.messages, report.released) == (CLIENTS + 2, CLIENTS * EACH + 3, 1)
    assert (report.expired, report.oversized, report.unreadable, report.conflicts) == (1, 1, 1, 0)
    assert done.differences == {"lost": 0, "extra": 0, "differ": 0}
    assert done.figures.rows == CLIENTS * EACH + 3
    assert done.figures.counts["opened"] == CLIENTS + 2
    for c in (1, CLIENTS):
        held = queue(client, f"device-{c}")
        assert [row[:3] for row in held] == [(n, n, 0) for n in range(1, EACH + 1)]
        assert [row[3].payload for row in held] == [f"value {c} {n}".encode() for n in range(1, EACH + 1)]
        assert {row[3].topic for row in held} == {f"devices/{c}/t".encode()}
    check_special(client)

    again = migrate(source, target_of(server), execute=True, options=FIT)
    assert again.figures.rows == 0
    assert again.figures.counts["repeated"] == CLIENTS * EACH + 3
    assert again.differences == {"lost": 0, "extra": 0, "differ": 0}


def of_the_page(url: str, secret: Path) -> list[str]:
    """The words of the page's command after `holdmq pipeline`, for this PostgreSQL and this file of its password."""
    [block] = blocks("docs/pipeline.md", "sh postgres")
    text = block.text.replace("jdbc:postgresql://db:5432/thingsboard_mqtt_broker", url).replace("reader", "postgres")
    words = shlex.split(text.removesuffix("secret") + shlex.quote(str(secret)))
    assert words[:2] == ["holdmq", "pipeline"]
    return words[2:]


def test_the_command_migrates_from_a_real_postgresql(
    postgres: Postgres, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """`holdmq pipeline migrate postgres`, from its words to its exit status; with a time to live that some are past."""
    secret, filters = tmp_path / "secret", tmp_path / "filters.csv"
    secret.write_text(f"{PASSWORD}\n")
    filters.write_text("client_id,filter,qos\nwrapped,w/#,2\n")
    jar = str((PROGRAMS / "jdbc.jar").resolve())
    words = ["migrate", "postgres", postgres.url, "--user", "postgres", "--jar", jar]
    refused(holdmq(server, *words), "Couldn't connect to the database")
    words = of_the_page(postgres.url, secret)
    assert words[:3] == ["migrate", "postgres", postgres.url]
    words += ["--jar", jar, "--partitions", "2", "--max-bytes", "4000", "--ttl", "86400"]
    reported = holdmq(server, *words)
    assert figures(reported)["rows"] == CLIENTS * EACH + 3
    assert re.search(r"^unreadable +1$", reported.stderr, re.MULTILINE)
    refused(holdmq(server, *words, "--execute"), "1 oversized and 1 unreadable messages")
    assert client.dbsize() == 0
    done = figures(holdmq(server, *words, "--skip-unfit", "--execute", "--subscriptions", str(filters)))
    assert (done["rows"], done["lost"], done["extra"], done["differ"]) == (CLIENTS * EACH + 3, 0, 0, 0)
    assert (done["clients"], done["opened"], done["subscriptions"]) == (CLIENTS + 2, CLIENTS + 2, 1)
    assert [row[:3] for row in queue(client, "device-7")] == [(n, n, 0) for n in range(1, EACH + 1)]
    assert 0 < client.pttl("{device-7}_messages_1") <= 86_401_000
    check_special(client)


def test_a_migration_that_is_run_again_continues_after_what_it_had_stored(
    spark: "SparkSession", server: Server, client: redis.Redis, fresh_server: Callable[..., Server]
) -> None:
    """Also if messages have expired meanwhile, so that the pieces of the queue are others."""
    old = fresh_server(module=False).client()
    count = PIECE_MESSAGES + 500
    old.mset({f"mqtt:{{long}}_messages_{n}": text_of(n) for n in range(1, count + 1)})
    old.zadd("mqtt:{long}_messages", {f"mqtt:{{long}}_messages_{n}": n for n in range(1, count + 1)})
    target = target_of(server)
    source = from_keyspace(spark, options_of(old), Rules(NOW_MS), partitions=1)
    first = pa.Table.from_batches(planned(source, target, 100_000).toArrow().to_batches())
    assert first.column("messages").to_pylist() == [500, PIECE_MESSAGES]
    table = first.slice(0, 1).append_column("conflict", pa.array([False]))
    list(import_queues(iter(table.select(list(TO_IMPORT)).to_batches()), target, opens=False))  # and then it was killed
    assert client.zcard("{long}_messages") == 500

    old.delete(*(f"mqtt:{{long}}_messages_{n}" for n in range(1, 300)))
    done = migrate(source, target, execute=True)
    assert (done.figures.rows, done.figures.counts["repeated"]) == (PIECE_MESSAGES, 201)
    assert [row[:2] for row in queue(client, "long")] == [(n, n) for n in range(1, count + 1)]


def test_the_newest_messages_are_kept_and_repeated_identifiers_become_new_ones(
    spark: "SparkSession", server: Server, client: redis.Redis
) -> None:
    schema = "client_id string, serial_number long, packet_id int"
    rows = [("c", 70_000 + n, 1 + n % 5) for n in range(9, -1, -1)]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[list[Row]]:
        for batch in batches:
            for one in batch.to_pylist():  # lists that end in the middle of a client
                value = Record(topic=b"t", payload=b"%d" % one["serial_number"]).encode()
                yield [(one["client_id"], one["serial_number"], one["packet_id"], 0, 0, value, None)]

    source = Source(spark.createDataFrame(rows, schema).coalesce(1), read)
    done = migrate(source, target_of(server), execute=True, options=MigrationOptions(limit=7))
    report = done.dry_run
    assert (report.messages, report.beyond_limit, report.repeated_ids) == (7, 3, 2)
    assert done.differences == {"lost": 0, "extra": 0, "differ": 0}
    held = queue(client, "c")
    assert [row[3].payload for row in held] == [b"%d" % serial for serial in range(70_003, 70_010)]
    assert [row[1] for row in held][:5] == [4, 5, 1, 2, 3]
    assert len({row[1] for row in held}) == 7


def check_special(client: redis.Redis) -> None:
    """What only some messages have: a released exchange, an expiry, properties, a flag; a client without messages."""
    released, with_expiry, with_pairs = queue(client, "wrapped")
    assert released[:3] == (65534, 65534, 2)
    assert released[3].type == RecordType.PUBREL
    assert with_expiry[:3] == (65535, 65535, 0)
    assert with_expiry[3].expires_ms == NOW_MS + 3_600_000
    assert with_expiry[3].retain
    held = decode_properties(with_expiry[3].properties)
    assert (held.payload_format_indicator, held.content_type, held.response_topic) == (1, b"text", b"reply")
    assert held.correlation_data == b"id"
    left: Any = client.pttl("{wrapped}_messages_65535")
    assert 3_000_000 < left <= 3_600_000
    assert with_pairs[:3] == (65536, 1, 0)
    assert decode_properties(with_pairs[3].properties).user_properties == ((b"k", b"v"), (b"k", b"w"))
    assert client.execute_command("SESSION.LAST", "{wrapped}") == 2
    assert client.execute_command("SESSION.LAST", "{idle %7B1%7D}") == 9
    assert client.hget("{wrapped}_subscriptions", "w/#") is not None


@pytest.fixture
def tbmq(fresh_server: Callable[..., Server]) -> redis.Redis:
    """A server without the module that holds a keyspace as TBMQ 2.x writes it, under a cache prefix."""
    client = fresh_server(module=False).client()
    for c in range(12):
        key = f"mqtt:{{device-{c}}}"
        for n in range(1, 8):
            put(client, key, n, qos=1 + n % 2)
        client.set(f"{key}_last_packet_id", 7)
    key = "mqtt:{device-0}"
    put(client, key, 8, topic_name="topic", ttl_s=600)
    client.delete(f"{key}_messages_3")
    client.set(
        f"{key}_messages_4", json.dumps({"packetType": "PUBREL", "packetId": 4, "topic": "t", "time": 1, "qos": 2})
    )
    return client


def text_of(n: int) -> str:
    return json.dumps(
        {"packetType": "PUBLISH", "payload": "eA==", "time": NOW_MS, "packetId": n, "topicName": "t", "qos": 1}
    )


def put(client: redis.Redis, key: str, n: int, *, qos: int = 1, topic_name: str = "topicName", ttl_s: int = 0) -> None:
    payload = base64.b64encode(f"payload {n}".encode()).decode()
    message = {
        "packetType": "PUBLISH", "payload": payload, "time": NOW_MS, "clientId": key, "retained": n == 1, "packetId": n,
        topic_name: f"europe/{n}", "qos": qos,
    }  # fmt: skip
    client.set(f"{key}_messages_{n}", json.dumps(message), ex=ttl_s or None)
    client.zadd(f"{key}_messages", {f"{key}_messages_{n}": 100 + n})


def test_a_keyspace_of_tbmq_becomes_sessions(
    spark: "SparkSession", tbmq: redis.Redis, server: Server, client: redis.Redis
) -> None:
    source = from_keyspace(spark, options_of(tbmq), Rules(NOW_MS), partitions=2)
    done = migrate(source, target_of(server), execute=True)
    assert done.dry_run.expired == 1
    assert done.dry_run.released == 1
    assert done.figures.rows == 12 * 7
    assert done.differences == {"lost": 0, "extra": 0, "differ": 0}
    held = queue(client, "device-5")
    assert [(row[0], row[1]) for row in held] == [(100 + n, n) for n in range(1, 8)]
    assert [row[3].payload for row in held] == [f"payload {n}".encode() for n in range(1, 8)]
    assert [row[3].topic for row in held] == [f"europe/{n}".encode() for n in range(1, 8)]
    assert [row[3].qos for row in held] == [1 + n % 2 for n in range(1, 8)]
    assert [row[3].retain for row in held] == [True, *[False] * 6]
    assert [(row[1], row[2]) for row in queue(client, "device-0")] == [(n, 2 * (n == 4)) for n in (1, 2, 4, 5, 6, 7, 8)]
    assert 500_000 < client.pttl("{device-0}_messages_8") <= 600_000
    assert tbmq.dbsize() == 12 * 9  # as it was: 7 messages, their order and a counter each; one message more, one less


def test_a_keyspace_goes_into_a_cluster_of_three(
    spark: "SparkSession", tbmq: redis.Redis, fresh_cluster: Callable[..., Cluster]
) -> None:
    cluster = fresh_cluster(3)
    options = Options({"url": cluster.nodes[0].url})
    done = migrate(from_keyspace(spark, options_of(tbmq), Rules(NOW_MS), partitions=2), Target(options), execute=True)
    assert done.figures.rows == 12 * 7
    assert done.differences == {"lost": 0, "extra": 0, "differ": 0}
    held = [
        node.client().zcard(f"{{device-{c}}}_messages")
        for c in range(12)
        for node in [cluster.node_of(f"{{device-{c}}}")]
    ]
    assert held == [7] * 12
    assert len({cluster.node_of(f"{{device-{c}}}").port for c in range(12)}) == 3
    rows = spark.read.format("holdmq").options(url=cluster.nodes[1].url, table="sessions").load()
    expected = {("device-5", 100 + n, n, f"payload {n}".encode()) for n in range(1, 8)}
    found = rows.where("client_id = 'device-5'").select("client_id", "serial", "packet_id", "payload").collect()
    assert {(row[0], row[1], row[2], bytes(row[3])) for row in found} == expected


def options_of(tbmq: redis.Redis) -> Options:
    port = tbmq.connection_pool.connection_kwargs["port"]
    return Options({"url": f"redis://127.0.0.1:{port}", "keyPrefix": "mqtt:"})


def test_a_session_in_use_is_refused_left_alone_or_continued_as_asked(
    spark: "SparkSession", tbmq: redis.Redis, server: Server, client: redis.Redis
) -> None:
    source = from_keyspace(spark, options_of(tbmq), Rules(NOW_MS), partitions=2)
    client.execute_command("SESSION.ADD", "{device-5}", Record(topic=b"x", payload=b"there").encode())

    assert migrate(source, target_of(server)).dry_run.conflicts == 1
    with pytest.raises(MigrationRefusedError, match=r"1 clients; .*the session of device-5 is in use"):
        migrate(source, target_of(server), execute=True)
    assert client.zcard("{device-1}_messages") == 0

    left = migrate(source, target_of(server, run="a"), execute=True, options=MigrationOptions(skip_conflicts=True))
    assert left.figures.rows == 11 * 7
    assert left.differences == {"lost": 0, "extra": 0, "differ": 0}
    assert [row[3].payload for row in queue(client, "device-5")] == [b"there"]

    client.delete(*client.keys("{device-[^5]*"))
    put_behind = migrate(source, target_of(server, run="b", merge=True), execute=True)
    assert put_behind.differences == {"lost": 0, "extra": 0, "differ": 0}
    assert put_behind.figures.counts["renumbered"] == 1
    payloads = [row[3].payload for row in queue(client, "device-5")]
    assert payloads == [b"there", *(f"payload {n}".encode() for n in range(1, 8))]


def test_the_comparison_finds_what_was_lost_added_or_changed(
    spark: "SparkSession", tbmq: redis.Redis, server: Server, client: redis.Redis
) -> None:
    source = from_keyspace(spark, options_of(tbmq), Rules(NOW_MS), partitions=2)
    migrate(source, target_of(server), execute=True)
    client.execute_command("SESSION.ACK", "{device-1}", 2, 3)
    client.execute_command("SESSION.ADD", "{device-2}", Record(topic=b"x").encode())
    client.set("{device-3}_messages_1", Record(topic=b"x").encode())
    found = compare(planned(source, target_of(server), 100), target_of(server))
    assert (found.lost, found.extra, found.differ) == (2, 1, 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"[]", "no message as TBMQ keeps it"),
        (b'{"packetType":"PUBLISH","topic":"t","time":1}', "'qos'"),
        (b'{"packetType":"PUBLISH","topic":"t","time":1,"qos":1,"payload":"%"}', "no message as TBMQ keeps it"),
        (b'{"packetType":"PUBLISH","topic":"t","time":1,"qos":1,"userProperties":"[1]"}', "user properties are"),
    ],
)
def test_a_string_that_is_not_a_message_says_why(text: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        message_of_json(text)


def test_an_expiry_interval_counts_from_the_time_of_the_message() -> None:
    assert Message("t", b"", 1000, 1, expiry_s=3).expires_ms == 4000
    assert Message("t", b"", 1000, 1).expires_ms == 0
    with pytest.raises(ValueError, match="topic"):
        Message("a/#", b"", 1000, 1).record()
