"""A real Spark cluster of a test: a master and two workers of Spark's own, on the loopback, in a folder of its own.

What makes executors see nothing of the test or the driver: workers have an environment, a folder, a home and a time
zone of their own; an executor's working directory is its worker's `work/<application>/<number>`.

Ports are those that the system hands out; the master says its own in its log. Whatever belongs to a cluster has its
folder in the environment (`MARK`), so that `left_over` finds what did not end with it: it must find nothing.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from holdmq.server import ChildProcess
from holdmq_pipeline.java import find_java
from tests.support.eventually import eventually

INSTALLED = Path(pyspark.__file__).parent
WORKERS = 2
START_S = 60.0
DRIVER_S = 100.0
END_S = 20.0
MARK = "HOLDMQ_TEST_SPARK_CLUSTER"
# The quicker start matters more than the quicker code: client compiler only, the collector without threads, no check of
# Spark's own classes.
QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def spark_home(folder: Path) -> Path:
    """Spark's programs and jars in this folder, which is made; as `SPARK_HOME`.

    Without its `python/lib/pyspark.zip`: out of that every Python process compiles PySpark anew, which takes it twice
    as long to start as with the package that is installed, the same of which is found instead.
    """
    folder.mkdir()
    for name in ("bin", "jars", "sbin"):
        (folder / name).symlink_to(INSTALLED / name)
    return folder


class SparkCluster:
    """A running cluster of two workers with a core each.

    Args:
        directory: for logs, work and scratch files.

    Attributes:
        url: as of `spark-submit --master`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._conf = directory / "conf"
        self._conf.mkdir(parents=True)
        self._spark_home = spark_home(directory / "spark")
        scratch = directory / "scratch"
        scratch.mkdir()
        java = f"{QUICK} -Djava.io.tmpdir={scratch}"
        defaults = {
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.executor.memory": "512m",
            "spark.cores.max": WORKERS,
            "spark.scheduler.minRegisteredResourcesRatio": 1,  # both workers have a part in it
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{DRIVER_S:.0f}s",
            "spark.ui.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": directory / "warehouse",
        }
        text = "".join(f"{name} {value}\n" for name, value in defaults.items())
        (self._conf / "spark-defaults.conf").write_text(text)
        self._daemon = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": java, "SPARK_LOCAL_DIRS": str(scratch)}
        self._master = self._made("master", "master.Master", "--port", "0")
        self._workers: list[ChildProcess] = []
        self._drivers: list[ChildProcess] = []
        try:
            self._master.spawn()
            self.url = eventually(self._said_url, START_S, "the address of Spark's master")
            for number in range(WORKERS):
                work = ("--cores", "1", "--memory", "512m", "--work-dir", str(self._work(number)), self.url)
                worker = self._made(f"worker-{number}", "worker.Worker", "--port", "0", *work)
                self._workers.append(worker)
                worker.spawn()
            eventually(
                lambda: self._master.log_text().count("Registering worker") == WORKERS, START_S, "Spark's two workers"
            )
        except BaseException:
            self.close()
            raise

    def start(self, command: Sequence[str | Path], folder: Path, **variables: str) -> ChildProcess:
        """Start a program that is a driver, with its paths counting from `folder`.

        Of several at once one gets both cores, and the others wait until it has ended.
        """
        words = ["env", "-i", "-C", str(folder), *_words(self._environment("driver", variables)), *map(str, command)]
        driver = ChildProcess(words, log=self._directory / f"driver-{len(self._drivers)}.log")
        self._drivers.append(driver)
        driver.spawn()
        return driver

    def finish(self, driver: ChildProcess) -> None:
        """Wait for its end, which has to be a good one."""
        eventually(lambda: not driver.running, DRIVER_S, "the end of the driver")
        assert driver.returncode == 0, driver.log_text()[-6000:]

    def executed(self) -> dict[str, list[int]]:
        """For each application that there was, in the order in which they came, the tasks that each worker finished."""
        found: dict[str, list[int]] = {}
        for number in range(WORKERS):
            for log in sorted(self._work(number).glob("app-*/*/stderr")):
                counts = found.setdefault(log.parts[-3], [0] * WORKERS)
                counts[number] += log.read_text().count("Finished task")
        return found

    def close(self) -> None:
        """End it, those first who need the others; executors end with their workers."""
        for process in (*self._drivers, *self._workers, self._master):
            if process.running:
                process.stop()

    def left_over(self) -> dict[int, str]:
        """Processes of this cluster, of whatever kind, that still run: their ids and commands."""
        mark = f"{MARK}={self._directory}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended, or is somebody else's
        return found

    def _work(self, number: int) -> Path:
        """Where executors of a worker have their folders."""
        return self._directory / f"worker-{number}" / "work"

    def _said_url(self) -> str | None:
        found = re.search(r"Starting Spark master at (spark://\S+)", self._master.log_text())
        assert self._master.running, self._master.log_text()
        return found[1] if found else None

    def _made(self, name: str, kind: str, *words: str) -> ChildProcess:
        """A program of Spark's, without the variables of this process."""
        variables = _words(self._environment(name, self._daemon))
        command = [self._spark_home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        log = self._directory / f"{name}.log"
        return ChildProcess(["env", "-i", *variables, *map(str, command), "--webui-port", "0", *words], log=log)

    def _environment(self, name: str, further: Mapping[str, str]) -> dict[str, str]:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.defpath,
            "HOME": str(home),
            "TMPDIR": str(home),
            "TZ": "Asia/Kathmandu" if name.startswith("worker") else "America/St_Johns",
            "JAVA_HOME": str(find_java()),
            "SPARK_CONF_DIR": str(self._conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(self._spark_home),
            MARK: str(self._directory),
            **further,
        }


def _words(variables: Mapping[str, str]) -> list[str]:
    """Variables as `env` takes them."""
    return [f"{name}={value}" for name, value in variables.items()]
