"""A standalone cluster of Spark: a real master and real workers, each a process that can be killed.

They are the daemons of the installed PySpark, started as the start scripts of a whole Spark
distribution start them (PySpark comes without these scripts). All of them listen on loopback.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.builders.spark_home import quick_jvm, spark_home
from tests.builders.spark_session import PATIENCE_SECONDS

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class Daemon:
    """One master or worker, in a process group of its own with what it starts."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self.log = folder / f"{name}.log"
        home = spark_home()
        variables = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{quick_jvm()} -Djava.io.tmpdir={folder}",
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command],
                stdout=log,
                stderr=log,
                env=variables,
                cwd=folder,
                start_new_session=True,
            )

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until its log says something; return what it said."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            said = self.log.read_text(errors="replace")
            if match := pattern.search(said):
                return match
            assert self.process.poll() is None, f"a daemon of Spark ended: {said[-4_000:]}"
            time.sleep(0.02)
        raise AssertionError(f"{self.log.name} never said {pattern.pattern!r}")

    def kill(self) -> None:
        """kill -9 the daemon and all it started, as a machine that is switched off."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class StandaloneCluster:
    """A master and some workers of one core. A context manager, so that no process stays."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        self._daemons: list[Daemon] = []
        try:
            master = Daemon(
                folder,
                "master",
                *(_MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
            self._daemons.append(master)
            self.master: str = master.wait_for(_ADDRESS)[1]
            """The address for jobs."""
            self.workers = [self._start_worker(folder, index) for index in range(workers)]
            for worker in self.workers:
                worker.wait_for(_REGISTERED)
        except BaseException:
            self.stop()
            raise

    def _start_worker(self, folder: Path, index: int) -> Daemon:
        place = ("--host", "127.0.0.1", "--webui-port", "0")
        size = ("--cores", "1", "--memory", "1g")
        work = ("--work-dir", str(folder / f"work-{index}"))
        worker = Daemon(
            folder, f"worker-{index}", _WORKER, *place, *size, *work, self.master
        )
        self._daemons.append(worker)
        return worker

    def stop(self) -> None:
        """Kill all of it."""
        for daemon in self._daemons:
            daemon.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
