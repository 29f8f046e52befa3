"""Settings: the only reader of the environment and of the TOML file.

For each setting the first of these that is present counts:

    environment    PENSTOCK_HASH_BITS=64    PENSTOCK_COMPACTION_MIN_FILES=4
    TOML file      hash_bits = 64           [compaction] min_files = 4
    default        below

The file is the one that `PENSTOCK_CONFIG` names, else `penstock.toml` in the working
directory if there is one. Sizes are whole bytes or text such as "10GB" (powers of 1000) and
"10GiB" (powers of 1024). An empty variable counts as absent. Names that start with
`PENSTOCK_TEST_` belong to the test suite; every other unknown name is refused, because a
misspelt setting that is silently ignored is found only when it hurts.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from penstock.errors import SettingsError, did_you_mean

_PREFIX = "PENSTOCK_"
_FILE_VARIABLE = "PENSTOCK_CONFIG"
_TEST_PREFIX = "PENSTOCK_TEST_"
_DEFAULT_FILE = "penstock.toml"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When the files of a table are merged, and into what."""

    min_files: int = 4
    """How many neighbouring files of one tier make a merge worth while."""
    min_expiring_files: int = 8
    """The same for tables by time: their files often expire before so many are there."""
    max_runs: int = 16
    """The hard limit of sorted runs per table and subtask: above it an epoch waits."""
    target_file_bytes: int = 128 << 20
    """A merge starts a new file at about this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be tuned without touching code. Valid by construction; read once per process."""

    hash_bits: int = 64
    """How many top bits of the key hash are kept. For tests; state written with one value
    cannot be read with another."""
    cache_root: str | None = None
    """Absolute directory of the executor's file cache; None for a directory of its own."""
    cache_limit_bytes: int = 10 << 30
    """How large the file cache may grow before the least recently used files go."""
    memory_budget_bytes: int = 256 << 20
    """How much of a keyed table one subtask may hold in memory at a time."""
    keep_epochs: int = 10
    """How many of the newest epochs stay restorable; savepoints stay besides."""
    profile_root: str | None = None
    """Absolute directory where every task leaves what cProfile saw of it; None for nowhere."""
    exchange_compression: str = "none"
    """How rows are compressed between tasks: "none", or "lz4" for slow networks where the
    engine does not compress what it shuffles; Spark does unless told otherwise."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)

    def __post_init__(self) -> None:
        values = {key: _value_of(self, key) for key in _RULES}
        problems = [
            _problem(key, value, "")
            for key, value in values.items()
            if (value is None and key not in _OPTIONAL) or _RULES[key].read(value) != value
        ]
        problems = problems or _contradictions(values)
        if problems:
            raise _error(problems)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a setting may be; `read` returns None for what it cannot make sense of."""

    read: Callable[[object], object]
    allowed: str


def _read_whole(raw: object) -> int | None:
    if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,18}", raw.strip()):
        return int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None


def _read_size(raw: object) -> int | None:
    if not isinstance(raw, str):
        return _read_whole(raw)
    match = _SIZE.fullmatch(raw.strip())
    if match is None:
        return None
    number, unit, binary = match.groups("")
    return int(Decimal(number) * (1024 if binary else 1000) ** _EXPONENTS[unit.lower()])


def _read_directory(raw: object) -> str | None:
    return raw if isinstance(raw, str) and Path(raw).is_absolute() else None


def _one_of(*allowed: str) -> _Rule:
    def read(raw: object) -> str | None:
        return raw if isinstance(raw, str) and raw in allowed else None

    return _Rule(read, " or ".join(map(repr, allowed)))


def _whole(least: int, most: int) -> _Rule:
    def read(raw: object) -> int | None:
        value = _read_whole(raw)
        return value if value is not None and least <= value <= most else None

    return _Rule(read, f"a whole number from {least:,} to {most:,}")


def _size(least: int) -> _Rule:
    def read(raw: object) -> int | None:
        value = _read_size(raw)
        return value if value is not None and least <= value <= _LARGEST else None

    return _Rule(read, f"a size of at least {least:,} bytes, such as '512MiB' or '10GB'")


_RULES: dict[str, _Rule] = {
    "hash_bits": _whole(1, 64),
    "cache_root": _Rule(_read_directory, "an absolute directory"),
    "cache_limit_bytes": _size(1 << 20),
    "memory_budget_bytes": _size(1 << 20),
    "keep_epochs": _whole(1, 1_000_000),
    "profile_root": _Rule(_read_directory, "an absolute directory"),
    "exchange_compression": _one_of("none", "lz4"),
    "compaction.min_files": _whole(2, 1_000),
    "compaction.min_expiring_files": _whole(2, 1_000),
    "compaction.max_runs": _whole(2, 10_000),
    "compaction.target_file_bytes": _size(1 << 16),
}
_OPTIONAL = {"cache_root", "profile_root"}


def load_settings(
    environ: Mapping[str, str] | None = None, path: str | Path | None = None
) -> Settings:
    """Read the settings anew; one `SettingsError` names everything that is wrong with them.

    `environ` stands in for the process's environment, `path` for the file it would name.
    """
    variables = os.environ if environ is None else environ
    entries = [*_entries_of_file(_file_to_read(variables, path)), *_entries_of(variables)]
    values: dict[str, object] = {key: _value_of(Settings(), key) for key in _RULES}
    problems: list[str] = []
    for entry in entries:
        value = _RULES[entry.key].read(entry.raw) if entry.key in _RULES else None
        if value is None:
            problems.append(_problem(entry.key, entry.raw, entry.place))
        values[entry.key] = value
    problems += _contradictions(values)
    if problems:
        raise _error(problems)
    return _build(values)


_adopted: Settings | None = None


def current() -> Settings:
    """Return the settings of this process: read at the first call, then always the same."""
    return _loaded() if _adopted is None else _adopted


def adopt(settings: Settings) -> None:
    """Use the driver's settings instead of this process's own: what workers do first.

    They must agree: a key hash of another width would look for state in the wrong place.
    """
    global _adopted  # noqa: PLW0603 (one per process)
    _adopted = settings


@cache
def _loaded() -> Settings:
    return load_settings()


def variable(name: str) -> str | None:
    """Return a variable that belongs to another program, such as JAVA_HOME; empty counts as none."""
    return os.environ.get(name) or None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value somebody wrote, and where; its key may be unknown."""

    key: str
    raw: object
    place: str


def _entries_of(variables: Mapping[str, str]) -> Iterator[_Entry]:
    known = {_variable_of(key): key for key in _RULES}
    for name, raw in sorted(variables.items()):
        is_ours = name.startswith(_PREFIX) and not name.startswith(_TEST_PREFIX)
        if is_ours and name != _FILE_VARIABLE and raw:
            yield _Entry(known.get(name, name), raw, f" in the variable {name}")


def _file_to_read(variables: Mapping[str, str], path: str | Path | None) -> Path | None:
    named = path or variables.get(_FILE_VARIABLE)
    if named:
        return Path(named)
    return Path(_DEFAULT_FILE) if Path(_DEFAULT_FILE).is_file() else None


def _entries_of_file(path: Path | None) -> Iterator[_Entry]:
    if path is None:
        return
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"the settings file {path} cannot be read ({error}): correct {_FILE_VARIABLE} or "
            "the file's permissions",
            path=str(path),
        ) from error
    except ValueError as error:
        raise SettingsError(
            f"the settings file {path} is not TOML ({error}): correct it", path=str(path)
        ) from error
    yield from _entries_of_table(document, "", f" in {path}")


def _entries_of_table(
    table: Mapping[str, object], prefix: str, place: str
) -> Iterator[_Entry]:
    for name, raw in table.items():
        if isinstance(raw, Mapping) and any(
            key.startswith(f"{prefix}{name}.") for key in _RULES
        ):
            yield from _entries_of_table(raw, f"{prefix}{name}.", place)
        else:
            yield _Entry(prefix + name, raw, place)


def _variable_of(key: str) -> str:
    return _PREFIX + key.replace(".", "_").upper()


def _value_of(settings: Settings, key: str) -> object:
    value: object = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _build(values: Mapping[str, Any]) -> Settings:
    section = "compaction."
    compaction = {
        key.removeprefix(section): value
        for key, value in values.items()
        if key.startswith(section)
    }
    others = {key: value for key, value in values.items() if not key.startswith(section)}
    return Settings(**others, compaction=CompactionSettings(**compaction))


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong between settings; those that are wrong by themselves are None."""
    min_files, max_runs = values["compaction.min_files"], values["compaction.max_runs"]
    if min_files is None or max_runs is None or min_files <= max_runs:
        return []
    problem = (
        f"compaction.max_runs = {max_runs!r}: expected at least compaction.min_files, which "
        f"is {min_files!r}, or no merge is ever worth while before an epoch has to wait for one"
    )
    return [problem]


def _problem(key: str, raw: object, place: str) -> str:
    if key in _RULES:
        return f"{key} = {raw!r}{place}: expected {_RULES[key].allowed}"
    known = map(_variable_of, _RULES) if key.startswith(_PREFIX) else _RULES
    return f"{key} = {raw!r}{place}: there is no such setting{did_you_mean(key, known)}"


def _error(problems: list[str]) -> SettingsError:
    return SettingsError(
        "\n".join(
            [
                f"{len(problems)} of the settings cannot work:",
                *(f"  {problem}" for problem in problems),
                "Correct them where they were set and start again.",
            ]
        )
    )
