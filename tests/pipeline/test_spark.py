"""The session that jobs run in."""

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdmq_pipeline import java
from holdmq_pipeline import spark as session
from pyspark_holdmq import DefaultSource

REPOSITORY = Path(__file__).parents[2]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_has_the_settings_that_the_jobs_need(spark: "SparkSession") -> None:
    assert {name: spark.conf.get(name) for name in session.SETTINGS} == session.SETTINGS


def test_without_a_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "PLACES", tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(java.JavaMissingError, match="openjdk-17-jre-headless"):
        java.find_java()


def test_spark_finds_the_source_by_itself_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its session does (pyspark.sql.worker.lookup_data_sources): modules by name, from the path."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "pipeline"))
    assert [info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")] == ["pyspark_holdmq"]
    assert (DefaultSource.name(), DefaultSource.__module__) == ("holdmq", "pyspark_holdmq")
