"""Doctors an installation: Java, Spark, packages, the checkpoints' store, the clock, and what helps.

Each finding says what was looked at, whether it is well, and what to do if it is not. Nothing is
left behind: the store is probed under a name of its own, which is deleted.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from penstock.core.clock import Clock, SystemClock, new_token
from penstock.core.ids import JobId
from penstock.core.settings import current, variable
from penstock.errors import PenstockError, hide_secrets
from penstock.state.storage.create import probe_store
from penstock.state.storage.urls import open_store

_LEAST_JAVA = 17
_PACKAGES = {
    "pyspark": "pip install 'penstock[spark]'",
    "confluent_kafka": "pip install 'penstock[kafka]', if you read or write topics",
    "deltalake": "pip install 'penstock[delta]', if you read or write Delta tables",
}
_NEEDED = frozenset({"pyspark"})
_OLDEST_MICROS = 1_735_689_600_000_000
"""The beginning of 2025: a clock that is earlier is wrong."""
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing."""

    what: str
    is_well: bool
    found: str
    advice: str = ""
    """What to do; empty if it is well."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether a job can run here."""
        return all(finding.is_well for finding in self.findings)

    def __str__(self) -> str:
        width = max(len(each.what) for each in self.findings)
        lines = []
        for each in self.findings:
            mark = "ok " if each.is_well else "BAD"
            lines.append(f"{mark}  {each.what:{width}}  {each.found}")
            if each.advice:
                lines.append(f"     {'':{width}}  {each.advice}")
        return "\n".join(lines)


def diagnose(url: str | None = None, *, clock: Clock | None = None) -> Diagnosis:
    """Look at everything that a job needs on this machine; with `url` also at the store."""
    found = [_look_at_java(), *_look_at_packages(), *_look_at_settings()]
    found.append(_look_at_clock(clock or SystemClock()))
    if url is not None:
        found.append(_look_at_store(url))
    return Diagnosis(tuple(found))


def _well(what: str, found: str) -> Finding:
    return Finding(what, is_well=True, found=found)


def _ill(what: str, found: str, advice: str) -> Finding:
    return Finding(what, is_well=False, found=found, advice=advice)


def _look_at_java() -> Finding:
    home = variable("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    advice = f"install Java {_LEAST_JAVA} or newer, and let JAVA_HOME name its folder"
    if shutil.which(program) is None:
        return _ill("Java", f"there is no program {program!r}", advice)
    try:
        ran = subprocess.run(  # noqa: S603 (the user's own Java)
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return _ill("Java", f"{program!r} does not run: {error}", advice)
    said = next(iter((ran.stderr or ran.stdout).splitlines()), "it says nothing")
    number = said.partition('"')[2].partition(".")[0].partition('"')[0]
    is_new = number.isdigit() and int(number) >= _LEAST_JAVA
    return _well("Java", said) if is_new else _ill("Java", said, advice)


def _look_at_packages() -> Iterator[Finding]:
    for module, advice in _PACKAGES.items():
        package = module.replace("_", "-")
        is_there = importlib.util.find_spec(module) is not None
        try:
            found = version(package) if is_there else "not installed"
        except PackageNotFoundError:
            found = "installed, without a version"
        is_well = is_there or module not in _NEEDED
        yield Finding(package, is_well, found, "" if is_there else advice)


def _look_at_settings() -> Iterator[Finding]:
    try:
        settings = current()
    except PenstockError as error:
        yield _ill("settings", error.message, "correct them")
        return
    named = "not set" if settings.checkpoint is None else hide_secrets(settings.checkpoint)
    yield _well("settings", f"readable; checkpoint: {named}")


def _look_at_clock(clock: Clock) -> Finding:
    now = clock.now_micros()
    if now < _OLDEST_MICROS:
        return _ill(
            "clock",
            f"it says {now // 1_000_000} s since 1970",
            "set it, by NTP at best",
        )
    return _well("clock", "it is plausible")


def _look_at_store(url: str) -> Finding:
    shown = hide_secrets(url)
    try:
        store = open_store(url)
        probe_store(store, JobId("penstock-doctor"), new_token())
    except PenstockError as error:
        return _ill("checkpoints", error.message, f"the place is {shown}")
    return _well("checkpoints", f"{shown}: creates are atomic, reads see writes")
