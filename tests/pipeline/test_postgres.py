"""The PostgreSQL of the tests runs wherever the checkout is, as root too."""

from tests.pipeline.postgres import PostgresServer


def test_a_server_starts_and_accepts_connections() -> None:
    with PostgresServer("CREATE TABLE t (x int);\n\n") as running:
        assert running.url.startswith("jdbc:postgresql://127.0.0.1:")
