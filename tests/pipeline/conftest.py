"""The one Spark of a run.

    spark       the session that all tests share; what a test sets in its configuration it sets back

All run in one process (`make test-pipeline`): Spark uses the cores by itself, and a second one would cost ten seconds
and half a GB.  A test file says `server_kinds = embedded_kinds`: what a server is makes no difference to Spark.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdmq_pipeline.spark import spark_session
from tests.pipeline.spark_cluster import QUICK, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TIMEOUT_S = 400
"""For one test, in place of the 120 s of others: on a busy machine the first queries of a Spark take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests of this folder their time."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session."""
    directory = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_HOME"] = str(spark_home(directory / "spark"))
    os.environ["TZ"] = "UTC"
    time.tzset()
    session = spark_session(
        "tests",
        master="local[2,3]",  # a task may fail twice: what a retry must not repeat is tested
        settings={
            "spark.driver.extraJavaOptions": f"{QUICK} -Dderby.system.home={directory}",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
