"""Plant faults into a copy of the project, one at a time, and prove that the tests find each.

Run by `make faults`. The faults are in `planted_faults.toml`. Each is one text that is replaced
by another wherever in the package it lies, so that a fault survives a move of its code, and a
selection of tests that must fail then. Where code was spelled anew, a fault has several
spellings: exactly one of them must occur, and exactly once.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
COPIED = ("src", "tests", "scripts", "pyproject.toml")
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
LONGEST_SECONDS = 900
QUICK_PROFILE = """
from hypothesis import Phase, settings
_phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
settings.register_profile("ci", settings(), phases=_phases)
settings.load_profile("ci")
"""
"""Behind the copied conftest: that a test fails is enough, with the smallest example or not."""
FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class PlantingError(Exception):
    """A fault could not be planted, or was not found: what the list promises is not so."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the list."""

    name: str
    harm: str
    spellings: tuple[tuple[str, str], ...]
    """What is replaced, and by what."""
    tests: tuple[str, ...]
    """Arguments of pytest."""
    hash_bits: int | None = None
    """Cuts key hashes, so that keys collide."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a selection of tests."""

    status: int
    output: str
    seconds: float

    @property
    def first_failure(self) -> str | None:
        """The id of the first test that failed; None if none did, or only its set-up."""
        found = FAILED.search(self.output)
        return None if found is None or self.status != 1 else found[1]

    def last_lines(self, count: int = 25) -> str:
        return "\n".join(self.output.splitlines()[-count:])


def read_faults(path: Path) -> list[Fault]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    faults = [
        Fault(
            entry["name"],
            entry["harm"],
            tuple((old, new) for old, new in entry["spellings"]),
            tuple(entry["tests"]),
            entry.get("hash_bits"),
        )
        for entry in entries
    ]
    names = [fault.name for fault in faults]
    if len(set(names)) != len(names):
        raise PlantingError(f"{path.name} names a fault twice")
    return faults


def choose(faults: list[Fault], names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names; all of them without names."""
    unknown = set(names) - {fault.name for fault in faults}
    if unknown:
        raise PlantingError(f"no fault is called {', '.join(sorted(unknown))}")
    return [fault for fault in faults if not names or fault.name in names]


@contextmanager
def scratch_copy(root: Path) -> Iterator[Path]:
    """Make a copy of what the tests need; it goes at the end."""
    with tempfile.TemporaryDirectory(prefix="planted-faults-") as name:
        folder = Path(name).resolve()
        for part in COPIED:
            if (root / part).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(root / part, folder / part, ignore=ignored)
            else:
                shutil.copy(root / part, folder / part)
        with (folder / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
            conftest.write(QUICK_PROFILE)
        yield folder


def find_place(fault: Fault, source: Path) -> tuple[Path, str, str]:
    """Return the only file that holds the only spelling of a fault, as it is and as it will be."""
    found = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for old, new in fault.spellings:
            found += [(path, text, text.replace(old, new))] * text.count(old)
    if len(found) != 1:
        places = ", ".join(path.relative_to(source).as_posix() for path, _, _ in found)
        raise PlantingError(
            f"{fault.name}: its text occurs {len(found)} times in {source.name} "
            f"({places or 'nowhere'}), and must occur once: give {LIST.name} the spelling that "
            "the code has now"
        )
    path, before, after = found[0]
    if before == after:
        raise PlantingError(f"{fault.name}: it replaces a text by itself")
    return path, before, after


def write_code(path: Path, text: str) -> None:
    """Write a module and drop its bytecode: that of the same second and size would be taken."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


@contextmanager
def planted(fault: Fault, folder: Path) -> Iterator[None]:
    path, before, after = find_place(fault, folder / "src" / "penstock")
    write_code(path, after)
    try:
        yield
    finally:
        write_code(path, before)


def environment_of(folder: Path, hash_bits: int | None = None) -> dict[str, str]:
    """Return variables under which the copy is imported, and Hypothesis tries the same each time.

    The path comes before the editable install, which pytest would load its plug-in from.
    """
    (folder / "tmp").mkdir(exist_ok=True)
    cut = {} if hash_bits is None else {"PENSTOCK_HASH_BITS": str(hash_bits)}
    return {
        **os.environ,
        **cut,
        "PYTHONPATH": str(folder / "src"),
        "HYPOTHESIS_PROFILE": "ci",
        "TMPDIR": str(folder / "tmp"),
    }


def check_import(folder: Path) -> None:
    """Refuse to go on where another copy of the package than the scratch one is imported."""
    code = "import penstock.testing.plugin as p, penstock; print(penstock.__file__, p.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment_of(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    for place in done.stdout.split():
        if not Path(place).resolve().is_relative_to(folder):
            raise PlantingError(f"the tests would import {place}, not the copy in {folder}")


def run_tests(fault: Fault, folder: Path) -> Run:
    """Run the selection of a fault, planted or not."""
    started = time.monotonic()
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)  # what an earlier fault broke
    try:
        done = subprocess.run(
            [sys.executable, *PYTEST, *fault.tests],
            cwd=folder,
            env=environment_of(folder, fault.hash_bits),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Run(-1, f"cut off after {LONGEST_SECONDS} seconds", LONGEST_SECONDS)
    return Run(done.returncode, done.stdout, time.monotonic() - started)


def check_sound(faults: Sequence[Fault], folder: Path) -> list[str]:
    """Run every selection without a fault; return what is wrong with those that do not pass."""
    problems = []
    selections = {(fault.tests, fault.hash_bits): fault for fault in faults}
    for number, fault in enumerate(selections.values(), 1):
        run = run_tests(fault, folder)
        shown = " ".join(fault.tests)
        print(f"  {number}/{len(selections)} {run.seconds:6.1f} s  {shown}", flush=True)
        if run.status != 0:
            problems.append(f"{shown} does not pass without a fault:\n{run.last_lines()}")
    return problems


def print_row(fault: str, found_by: str, seconds: str, width: int) -> None:
    print(f"{fault:<{width}}  {seconds:>7}  {found_by}", flush=True)


def hunt(faults: Sequence[Fault], folder: Path) -> list[str]:
    """Plant every fault and print who found it; return what is wrong with those nobody did."""
    problems = []
    width = max(len(fault.name) for fault in faults)
    print_row("fault", "found by", "seconds", width)
    for fault in faults:
        with planted(fault, folder):
            run = run_tests(fault, folder)
        found_by = run.first_failure
        shown = found_by or f"NOT FOUND (pytest ended with {run.status})"
        print_row(fault.name, shown, f"{run.seconds:.1f}", width)
        if found_by is None:
            problems.append(f"{fault.name} was not found: {fault.harm}\n{run.last_lines()}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to copy")
    parser.add_argument(
        "--skip-sound",
        action="store_true",
        help="do not run the tests without a fault first",
    )
    options = parser.parse_args()
    faults: list[Fault] = []
    try:
        faults = choose(read_faults(LIST), options.only)
        with scratch_copy(options.root.resolve()) as folder:
            check_import(folder)
            for fault in faults:
                find_place(fault, folder / "src" / "penstock")
            problems = []
            if not options.skip_sound:
                print("without a fault:", flush=True)
                problems += check_sound(faults, folder)
            if not problems:  # else a failure would prove nothing
                problems += hunt(faults, folder)
    except PlantingError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"planted_faults: {problem}", file=sys.stderr)
    if not problems:
        print(f"planted_faults: all {len(faults)} faults were found")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
