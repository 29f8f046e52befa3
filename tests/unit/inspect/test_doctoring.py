"""The doctor finds what a job needs, and says what to do about what is missing."""

from pathlib import Path

import pytest

from penstock.core.clock import ManualClock
from penstock.errors import SettingsError
from penstock.inspect import doctoring
from penstock.inspect.doctoring import Diagnosis, Finding, diagnose


def of(found: Diagnosis, what: str) -> Finding:
    return next(each for each in found.findings if each.what == what)


def test_a_healthy_place_is_well(tmp_path: Path) -> None:
    found = diagnose(str(tmp_path))
    assert found.is_well, str(found)
    assert of(found, "checkpoints").is_well
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_missing_java_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = diagnose()
    assert not found.is_well
    assert "JAVA_HOME" in of(found, "Java").advice
    assert "BAD  Java" in str(found)


@pytest.mark.parametrize(
    ("said", "is_well"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_391"', False),
        ("", False),
    ],
)
def test_an_old_java_is_told_from_a_new_one(
    monkeypatch: pytest.MonkeyPatch, said: str, is_well: bool
) -> None:
    class Ran:
        stderr, stdout = said, ""

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: Ran())
    assert of(diagnose(), "Java").is_well is is_well


def test_a_package_that_only_some_need_is_advice_and_no_illness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    found = diagnose()
    assert not of(found, "pyspark").is_well
    assert of(found, "deltalake").is_well
    assert "penstock[delta]" in of(found, "deltalake").advice


def test_a_store_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    found = of(diagnose(str(file)), "checkpoints")
    assert not found.is_well
    assert str(file) in found.advice


def test_a_password_in_the_url_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise SettingsError("no such place")

    monkeypatch.setattr(doctoring, "open_store", refuse)
    assert "hunter2" not in str(diagnose("s3://me:hunter2@bucket/x"))


def test_a_clock_of_another_time_is_found() -> None:
    assert not of(diagnose(clock=ManualClock(0)), "clock").is_well


def test_settings_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SettingsError("1 of the settings cannot work")

    monkeypatch.setattr(doctoring, "current", refuse)
    assert not of(diagnose(), "settings").is_well
