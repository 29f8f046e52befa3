"""What Spark would fail on without saying so is found out before it is started."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, UserError
from penstock.runtime.spark.session import check_can_start, check_java, check_master

SHELL = shutil.which("sh")
"""Found before tests change PATH."""


def a_java(folder: Path, says: str) -> None:
    """Put a program in place that tells a version and can do nothing else."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!{SHELL}\necho '{says}' >&2\n", encoding="utf-8")
    program.chmod(0o755)


def openjdk(version: str) -> str:
    return f'openjdk version "{version}" 2023-10-17'


@pytest.fixture
def only_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is all of PATH; there is no JAVA_HOME."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    return tmp_path / "bin"


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def silent() -> int:
    """Return a port that nobody listens on: one that was just given back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("version", ["11.0.21", "1.8.0_392", "16-ea"])
def test_an_old_java_is_named_with_the_version_that_is_needed(
    only_path: Path, version: str
) -> None:
    a_java(only_path, openjdk(version))
    with pytest.raises(UserError) as raised:
        check_java()
    assert raised.value.code is ErrorCode.ENGINE_MISSING
    assert raised.value.context == {"needed": 17, "found": version}
    assert f"it needs Java 17 or newer, and {only_path}/java is Java {version}" in str(
        raised.value
    )


@pytest.mark.parametrize("version", ["17.0.9", "21", "25-ea", "100.1"])
def test_a_new_enough_java_will_do(only_path: Path, version: str) -> None:
    a_java(only_path, openjdk(version))
    check_java()


def test_java_home_goes_before_path_as_it_does_for_spark(
    only_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(only_path, openjdk("21"))
    a_java(tmp_path / "jdk11" / "bin", openjdk("11.0.21"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk11"))
    with pytest.raises(UserError, match=r"jdk11/bin/java is Java 11\.0\.21"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"JAVA_HOME is '.*gone', and there is no bin/java"):
        check_java()


def test_no_java_at_all_is_said_in_words(only_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no Java was found \(not on PATH\)\. Install Java"
    ):
        check_java()


def test_a_java_that_says_nothing_of_use_is_refused(only_path: Path) -> None:
    a_java(only_path, "The operation could not be completed. Unable to locate a Runtime.")
    with pytest.raises(UserError, match="does not tell its version"):
        check_java()


def test_a_jvm_that_spark_submit_started_needs_no_java(
    only_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1234")
    check_can_start("local[2]")


def test_a_master_that_answers_will_do_also_as_one_of_several(
    listening: int, silent: int
) -> None:
    check_master(f"spark://127.0.0.1:{listening}")
    check_master(f"spark://127.0.0.1:{silent},127.0.0.1:{listening}")


def test_a_master_that_does_not_answer_is_named_with_the_reason(silent: int) -> None:
    with pytest.raises(UserError, match="refused") as raised:
        check_master(f"spark://127.0.0.1:{silent}")
    assert raised.value.code is ErrorCode.ENGINE_MISSING
    assert f"'spark://127.0.0.1:{silent}' cannot be reached" in str(raised.value)


@pytest.mark.parametrize("master", ["spark://", "spark://host", "spark://host:port"])
def test_a_master_without_an_address_is_refused(master: str) -> None:
    with pytest.raises(UserError, match="write spark://host:7077") as raised:
        check_master(master)
    assert raised.value.code is ErrorCode.INVALID_URL


@pytest.mark.parametrize("master", ["spark://127.0.0.1:0", "spark://127.0.0.1:99999"])
def test_a_port_that_cannot_be_is_a_master_that_cannot_be_reached(master: str) -> None:
    with pytest.raises(UserError, match="cannot be reached"):
        check_master(master)
