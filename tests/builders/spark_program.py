"""A driver in a process group of its own, with a JVM of its own, that a test can stop or kill.

The test and the program talk in JSON lines: a line in starts a run, lines out tell what
happens. Whatever a killed one leaves behind lies in one short-named folder, which goes with
the fixture that made it: the paths of Spark's sockets must stay short.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from penstock.core.clock import new_token
from tests.builders.spark_session import QUICK_JVM, ROOT


class SparkProgram:
    """One started program."""

    def __init__(
        self,
        program: Path,
        scratch: Path,
        *,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.errors = scratch / f"errors-{new_token()}"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(scratch, conf or {}),
                cwd=scratch,
                start_new_session=True,
            )

    def tell(self, **order: Any) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next line; the test's own time limit is the limit."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.errors.read_text()[-4_000:]}"
        said: dict[str, Any] = json.loads(line)
        return said

    def hear_until(self, event: str) -> dict[str, Any]:
        """Return the first line about an event; others are dropped."""
        while (said := self.hear())["event"] != event:
            pass
        return said

    def signal(self, number: int) -> None:
        """Send a signal to the driver and to its JVM."""
        os.killpg(self.process.pid, number)

    def wait(self) -> int:
        """Wait until the program has ended; return its exit code."""
        code = self.process.wait()
        self._close()
        return code

    def kill(self) -> None:
        """kill -9 the driver and its JVM; workers notice by themselves."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


def _environment(scratch: Path, conf: Mapping[str, str]) -> dict[str, str]:
    path = f"{ROOT}:{ROOT / 'src'}"
    settings = {
        "spark.executorEnv.PYTHONPATH": path,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        **conf,
    }
    return {
        **os.environ,
        "PYTHONPATH": path,
        "TMPDIR": str(scratch),
        "SPARK_HOME": str(_spark_home(scratch)),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{QUICK_JVM} -Djava.io.tmpdir={scratch}",
        "PYSPARK_SUBMIT_ARGS": " ".join(
            [
                *(f"--conf '{key}={value}'" for key, value in settings.items()),
                "pyspark-shell",
            ]
        ),
    }


def _spark_home(scratch: Path) -> Path:
    """Return Spark seen through a folder of ours: its executors write beside its programs."""
    home = scratch / "spark"
    if not home.exists():
        home.mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            (home / part.name).symlink_to(part)
    return home


def say(event: str, **facts: Any) -> None:
    """Tell the test what happened; called in the program."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def orders() -> Any:
    """Yield the test's orders until it has no more; called in the program."""
    for line in sys.stdin:
        yield json.loads(line)
