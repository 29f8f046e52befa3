"""Whatever moment a JVM is killed at while Spark starts, its end is told as what it is.

A program stands in for the JVM. It speaks as much of py4j as the start needs, and dies at the
chosen moment. Its connections break a moment before it is gone, as those of a process do that the
kernel is still taking apart.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import penstock as pen
from penstock.errors import ErrorCode, ExternalError, UserError
from penstock.runtime.spark.jvm import SparkStart
from penstock.runtime.spark.session import check_java, open_session

_JVM = """\
import os, signal, socket, struct, sys, time

def die():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)

left = int(sys.argv[1])
if left < 0:
    die()
server = socket.create_server(("127.0.0.1", 0))
told, path = b"secret", os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(path + ".new", "wb") as info:
    info.write(struct.pack("!ii", server.getsockname()[1], len(told)) + told)
os.rename(path + ".new", path)
connection, _ = server.accept()
server.close()
lines = connection.makefile("rb")
assert lines.readline() == b"A\\n" and lines.readline() == b"secret\\n"
connection.sendall(b"!yv\\n")
while left:
    while (line := lines.readline()) != b"e\\n":
        assert line
    connection.sendall(b"!yv\\n")
    left -= 1
lines.close()
connection.close()
die()
"""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PySpark forget a Spark that other tests have started, for the time of this one."""
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def a_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def a_spark(folder: Path, monkeypatch: pytest.MonkeyPatch, starts: str) -> None:
    """Put a Spark in place that starts with a line of shell, and a Java."""
    a_program(folder / "bin" / "spark-submit", f"#!/bin/sh\n{starts}\n")
    java = "#!/bin/sh\necho 'version \"17.0.9\"' >&2\n"
    a_program(folder / "jdk" / "bin" / "java", java)
    monkeypatch.setenv("SPARK_HOME", str(folder))
    monkeypatch.setenv("JAVA_HOME", str(folder / "jdk"))


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("answers", "show_logs"),
    [
        pytest.param(-1, False, id="before-it-tells-its-port"),
        pytest.param(0, False, id="when-it-has-told-its-port"),
        pytest.param(5, True, id="while-it-is-asked-for-packages"),
        pytest.param(13, False, id="while-the-context-starts"),
    ],
)
def test_a_jvm_that_is_killed_during_the_start_is_no_missing_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int, show_logs: bool
) -> None:
    jvm = tmp_path / "jvm.py"
    jvm.write_text(_JVM, encoding="utf-8")
    a_spark(tmp_path, monkeypatch, f"exec {sys.executable} -S -E {jvm} {answers}")
    with pytest.raises(ExternalError, match="JVM ended while Spark started") as raised:
        open_session("local[1]", show_logs=show_logs)
    assert raised.value.code is ErrorCode.ENGINE_FAILED


def test_a_java_that_is_killed_when_it_is_asked_for_its_version_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path / "jdk" / "bin" / "java", "#!/bin/sh\nkill -9 $$\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(ExternalError, match="was killed when it was asked") as raised:
        check_java()
    assert raised.value.code is ErrorCode.ENGINE_FAILED


@pytest.mark.usefixtures("no_spark")
def test_a_jvm_that_ends_with_a_word_of_why_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_spark(tmp_path, monkeypatch, "echo 'Error: no such option' >&2; exit 1")
    with pytest.raises(UserError) as raised:
        open_session("local[1]")
    assert raised.value.code is ErrorCode.ENGINE_MISSING
    assert raised.value.__notes__ == ["Spark said:\nError: no such option"]


@pytest.mark.usefixtures("no_spark")
def test_a_start_that_is_given_up_before_it_begins_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_spark(tmp_path, monkeypatch, f"touch {tmp_path}/started; sleep 60")
    with pytest.raises(ExternalError, match="the start of Spark was given up"):
        open_session("local[1]", on_start=SparkStart.give_up)
    assert not (tmp_path / "started").exists()


@pytest.mark.usefixtures("no_spark")
def test_a_jvm_that_is_slow_to_come_ends_after_its_start_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.spark.jvm._GATEWAY_SECONDS", 0.1)
    jvm = tmp_path / "jvm.py"
    jvm.write_text(_JVM, encoding="utf-8")
    waits = f"echo $$ > {tmp_path}/pid; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    a_spark(tmp_path, monkeypatch, f"{waits}; exec {sys.executable} -S -E {jvm} 99")

    def give_up(start: SparkStart) -> None:
        def later() -> None:
            pid = int(wait_for_text(tmp_path / "pid"))
            start.give_up()
            pids.append(pid)

        threading.Thread(target=later).start()

    pids: list[int] = []
    with pytest.raises(ExternalError, match="the start of Spark was given up"):
        open_session("local[1]", on_start=give_up)
    (tmp_path / "go").touch()
    deadline = time.monotonic() + 60
    while not pids or Path(f"/proc/{pids[0]}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_text(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


class DeadSession:
    """A session of the user's whose JVM has ended: nothing answers."""

    sparkContext = object()  # noqa: N815 (as PySpark calls it)

    @property
    def conf(self) -> Any:
        raise ConnectionRefusedError("nobody listens")


def test_a_session_that_is_dead_when_a_job_gets_it_is_told_in_words(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("late")
    pipeline.read("numbers", pen.impulse(count=1)).write("out", pen.blackhole())
    given: Any = DeadSession()
    with pytest.raises(ExternalError, match="ended while it ran the start of job 'late'"):
        pipeline.run(str(tmp_path), session=given)
