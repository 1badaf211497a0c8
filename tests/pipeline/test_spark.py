"""The session that jobs run in."""

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdmq_pipeline import java
from holdmq_pipeline import spark as session
from holdmq_pipeline.options import Options
from holdmq_pipeline.places import whole_path
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


def test_only_a_spark_within_the_process_keeps_to_the_loopback() -> None:
    """Executors on other machines have to reach the driver."""
    host = "spark.driver.host"
    for where in (None, "local[2]"):
        assert session.all_settings(where, {}, submitted=False)[host] == "127.0.0.1"
    remote = session.all_settings("spark://master:7077", {}, submitted=False)
    assert (remote["spark.master"], host in remote) == ("spark://master:7077", False)
    assert host not in session.all_settings(None, {"spark.master": "spark://master:7077"}, submitted=False)
    submitted = session.all_settings(None, {"spark.driver.memory": "1g"}, submitted=True)
    assert not {"spark.master", host} & set(submitted)
    assert submitted["spark.driver.memory"] == "1g"


def test_paths_of_tasks_do_not_count_from_the_folder_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = {"a/b": f"{tmp_path}/a/b", "parquet:a": f"parquet:{tmp_path}/a", "/a": "/a", "s3://a/b": "s3://a/b", "": ""}
    assert {place: whole_path(place) for place in whole} == whole
    given = Options({"archive": "parquet:a", "passwordFile": "secret"})
    assert (given.text("archive"), given.text("passwordFile")) == (f"parquet:{tmp_path}/a", f"{tmp_path}/secret")
