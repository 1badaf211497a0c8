"""A Spark session with the settings that the jobs need.

What is set, and why:

    spark.sql.session.timeZone                   UTC: a date in a file's path means the same everywhere
    spark.sql.parquet.outputTimestampType        TIMESTAMP_MICROS: INT96, Spark's default, has no statistics, so that a
                                                 time range would prune nothing
    spark.sql.python.filterPushdown.enabled      lets the data source's option `pushFilters` work
    spark.sql.execution.arrow.pyspark.enabled    toPandas and createDataFrame go by columns
    spark.ui.showConsoleProgress                 off: the jobs show their own

Under `spark-submit` master and memory are those of the command line; nothing here overrides what it sets.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from holdmq_pipeline.java import find_java
from pyspark_holdmq import DefaultSource

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
STARTED_SETTINGS = {"spark.driver.memory": "2g"}
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def all_settings(master: str | None, settings: Mapping[str, Any], *, submitted: bool) -> dict[str, Any]:
    """The settings of a session, the master included; arguments as of `spark_session`.

    Only a Spark within this process keeps to the loopback: executors elsewhere have to reach the driver, whose address
    is what Spark finds, or the setting `spark.driver.host`.
    """
    if submitted:
        return {**SETTINGS, **({"spark.master": master} if master else {}), **settings}
    where = str(settings.get("spark.master") or master or "local[*]")
    local = LOCAL_SETTINGS if where.startswith("local") else {}
    return {**SETTINGS, **STARTED_SETTINGS, **local, **settings, "spark.master": where}


def spark_session(
    name: str = "holdmq", *, master: str | None = None, settings: Mapping[str, Any] | None = None
) -> SparkSession:
    """The session of this process, made if there is none; only the caller that made it should stop it.

    Args:
        name: shown by Spark's own pages and logs.
        master: as of `spark-submit --master`; without it that of spark-submit, or all cores of this machine.
        settings: further ones, which win over those above.

    Raises:
        JavaMissingError: there is no Java that Spark supports.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in all_settings(master, settings or {}, submitted=submitted).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Spark finds the source by itself where it is installed; not in a checkout, whose packages are found by a hook.
    session.dataSource.register(DefaultSource)
    return session
