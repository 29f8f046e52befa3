"""Dependencies: the lock holds what the project declares, pinned and hashed, and the bounds are true."""

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.project import ROOT, SOURCE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
DECLARED = [
    Requirement(text)
    for text in (
        *PROJECT["project"]["dependencies"],
        *(text for texts in EXTRAS.values() for text in texts),
        *PROJECT["dependency-groups"]["dev"],
    )
    if not text.startswith("penstock[")
]
LOCKS = ["dev.txt", "docs.txt", "proto.txt"]


def entries_of(lock: str) -> list[str]:
    """Return the entries of a lock file: a requirement and its hashes in one line each."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def pinned(lock: str) -> dict[str, list[Requirement]]:
    """Return the pins of each package: several where platforms or Pythons need different ones."""
    pins: dict[str, list[Requirement]] = {}
    for entry in entries_of(lock):
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        pins.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return pins


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_one_exact_version_with_hashes_in_every_entry(lock: str) -> None:
    pattern = re.compile(
        r"[\w.-]+==[\w.!+-]+( ; [^;]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*"
    )
    loose = [entry[:60] for entry in entries_of(lock) if not pattern.fullmatch(entry)]
    assert loose == []


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda requirement: requirement.name)
def test_the_lock_satisfies_every_declared_dependency(requirement: Requirement) -> None:
    pins = pinned("dev.txt")[canonicalize_name(requirement.name)]
    for pin in pins:
        (specifier,) = pin.specifier
        assert requirement.specifier.contains(specifier.version, prereleases=True)


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda requirement: requirement.name)
def test_the_tests_run_with_what_the_lock_pins(requirement: Requirement) -> None:
    pins = pinned("dev.txt")[canonicalize_name(requirement.name)]
    (pin,) = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    assert pin.specifier.contains(version(requirement.name), prereleases=True), (
        "run `make setup`"
    )


def test_the_lower_bound_of_protobuf_is_what_the_generated_code_needs() -> None:
    needed = {
        re.search(
            r"^# Protobuf Python Version: (.+)$", path.read_text("utf-8"), re.MULTILINE
        )
        for path in SOURCE.rglob("*_pb2.py")
    }
    (bound,) = {match[1] for match in needed if match is not None}
    (protobuf,) = [r for r in DECLARED if r.name == "protobuf"]
    assert str(protobuf.specifier) == f"<8,>={bound}"
    assert [str(pin.specifier) for pin in pinned("proto.txt")["protobuf"]] == [f"=={bound}"]
