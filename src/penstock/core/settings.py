"""Settings: the only reader of the environment and of the TOML file.

Each setting has the value of the first of these places that names it:

    environment    PENSTOCK_HASH_BITS=64    PENSTOCK_COMPACTION_MIN_FILES=4
    TOML file      hash_bits = 64           [compaction] min_files = 4
    default        below

The file is the one that `PENSTOCK_CONFIG` names, else `penstock.toml` in the working
directory if there is one. Sizes are whole bytes or text such as "10GB" (powers of 1000) and
"10GiB" (powers of 1024); lengths of time are whole seconds or text such as "6h". An empty
variable counts as absent. Names that start with `PENSTOCK_TEST_` belong to the test suite.
Every other unknown name is refused, because a misspelt setting would otherwise be silently
ignored.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Meta

from penstock.core.clock import to_micros
from penstock.errors import SettingsError, UserError, did_you_mean, hide_secrets

_PREFIX = "PENSTOCK_"
_FILE_VARIABLE = "PENSTOCK_CONFIG"
_TEST_PREFIX = "PENSTOCK_TEST_"
_DEFAULT_FILE = "penstock.toml"
_SECTION = "compaction."
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_Bytes: TypeAlias = Annotated[int, Meta(le=(1 << 63) - 1)]
"""A size. The setting's name ends in `_bytes`, and its text may have a unit."""
_Directory: TypeAlias = str | None
"""An absolute directory. The setting's name ends in `_root`."""
_Generations: TypeAlias = tuple[Annotated[int, Meta(ge=0, le=1_000)], ...] | None
"""Numbers of merges; a variable separates them by commas. The name ends in `_generations`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When the files of a table are merged, and into what."""

    min_files: Annotated[int, Meta(ge=2, le=1_000)] = 4
    """How many neighbouring files of one tier are needed for a merge."""
    min_expiring_files: Annotated[int, Meta(ge=2, le=1_000)] = 8
    """The same for tables by time, whose files often expire before a merge would pay."""
    max_runs: Annotated[int, Meta(ge=2, le=10_000)] = 16
    """The limit of sorted runs per table and subtask: above it an epoch waits for a merge."""
    target_file_bytes: Annotated[_Bytes, Meta(ge=1 << 16)] = 128 << 20
    """A merge starts a new file at about this size."""
    compact_generations: _Generations = None
    """Only files that were merged this often take part in a merge, except in a merge that an
    epoch waits for. None allows all files. A file that an epoch wrote has generation 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process. Valid by construction; read once per process."""

    hash_bits: Annotated[int, Meta(ge=1, le=64)] = 64
    """How many top bits of the key hash are kept. This is for tests: state written with one
    value cannot be read with another."""
    cache_root: _Directory = None
    """Absolute directory of the executor's file cache; None for a directory of its own."""
    cache_limit_bytes: Annotated[_Bytes, Meta(ge=1 << 20)] = 10 << 30
    """How large the file cache may grow before the least recently used entries are removed."""
    memory_budget_bytes: Annotated[_Bytes, Meta(ge=1 << 20)] = 256 << 20
    """How much of a keyed table one subtask may hold in memory at a time."""
    keep_epochs: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    """How many of the newest epochs stay restorable; savepoints stay as well."""
    profile_root: _Directory = None
    """Absolute directory to which every task writes its cProfile data; None writes none."""
    exchange_compression: Literal["none", "lz4"] = "none"
    """How rows are compressed between tasks: "none", or "lz4" for slow networks if the engine
    does not compress its shuffles. Spark compresses them by default."""
    epoch_deadline_seconds: Annotated[int, Meta(ge=1, le=31_536_000)] = 21_600
    """On Spark: how long an epoch that reads may run. A longer one is cancelled, because one
    of its sources must be stuck. The default is far longer than any epoch should take."""
    checkpoint: str | None = None
    """Where jobs keep their checkpoints, for commands that are not told: a folder or a URL."""
    journal_keep_seconds: Annotated[int, Meta(ge=60, le=31_536_000)] = 86_400
    """How long the events of a job's journal stay."""
    journal_samples: Literal["on", "off"] = "on"
    """Whether the journal keeps the first late and bad rows of each step, and frequent keys:
    "off" where rows must not be stored twice."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)

    def __post_init__(self) -> None:
        values = _values_of(self)
        problems = [
            _problem(key, value) for key, value in values.items() if not _fits(key, value)
        ]
        problems = problems or list(_contradictions(values))
        if problems:
            raise _error(problems)


_KINDS: dict[str, Any] = {
    **get_type_hints(Settings, include_extras=True),
    **{
        _SECTION + name: kind
        for name, kind in get_type_hints(CompactionSettings, include_extras=True).items()
    },
}
"""The type and bounds of each setting, by its key in the file."""
del _KINDS["compaction"]


def load_settings(
    environ: Mapping[str, str] | None = None, path: str | Path | None = None
) -> Settings:
    """Read the settings again; one `SettingsError` names everything that is wrong with them.

    `environ` replaces the process's environment, `path` the file that it would name.
    """
    variables = os.environ if environ is None else environ
    values = _values_of(Settings())
    problems: list[str] = []
    for key, raw, place in (*_entries_of_file(variables, path), *_entries_of(variables)):
        values[key] = value = _parse(key, raw)
        if key not in _KINDS or not _fits(key, value):
            problems.append(_problem(key, raw, place))
            values[key] = None
    problems += _contradictions(values)
    if problems:
        raise _error(problems)
    compaction = {
        key.removeprefix(_SECTION): values.pop(key)
        for key in _KINDS
        if key.startswith(_SECTION)
    }
    return Settings(**values, compaction=CompactionSettings(**compaction))


_adopted: Settings | None = None


def current() -> Settings:
    """Return the settings that `adopt` was given, else those read at the first call."""
    return _loaded() if _adopted is None else _adopted


def adopt(settings: Settings) -> None:
    """Use the driver's settings instead of this process's own; workers call this first.

    Driver and workers must agree: with another `hash_bits` a worker would look for state in
    the wrong place.
    """
    global _adopted  # noqa: PLW0603 (one per process)
    _adopted = settings


@cache
def _loaded() -> Settings:
    return load_settings()


def variable(name: str) -> str | None:
    """Return a variable of another program, such as JAVA_HOME; an empty one counts as absent."""
    return os.environ.get(name) or None


_Entry: TypeAlias = tuple[str, object, str]
"""A key, which may be unknown, the value that was written for it, and the place of that."""


def _entries_of(variables: Mapping[str, str]) -> Iterator[_Entry]:
    known = {_variable_of(key): key for key in _KINDS}
    for name, raw in sorted(variables.items()):
        is_ours = name.startswith(_PREFIX) and not name.startswith(_TEST_PREFIX)
        if is_ours and name != _FILE_VARIABLE and raw:
            yield known.get(name, name), raw, f" in the variable {name}"


def _entries_of_file(
    variables: Mapping[str, str], given: str | Path | None
) -> Iterator[_Entry]:
    named = given or variables.get(_FILE_VARIABLE)
    path = Path(named or _DEFAULT_FILE)
    if not named and not path.is_file():
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
    for name, raw in document.items():
        if name == "compaction" and isinstance(raw, Mapping):
            for key, value in raw.items():
                yield _SECTION + key, value, f" in {path}"
        else:
            yield name, raw, f" in {path}"


def _variable_of(key: str) -> str:
    return _PREFIX + key.replace(".", "_").upper()


def _values_of(settings: Settings) -> dict[str, Any]:
    """Return the value of each setting, by its key in the file."""
    sections = {"": settings, "compaction": settings.compaction}
    return {
        key: getattr(sections[key.rpartition(".")[0]], key.rpartition(".")[2])
        for key in _KINDS
    }


def _parse(key: str, raw: object) -> object:
    """Return the number or numbers that a text or list holds; other values stay as they are."""
    if key.endswith("_generations") and isinstance(raw, str | list):
        parts = raw.split(",") if isinstance(raw, str) else raw
        return tuple(int(part) if str(part).strip().isdigit() else part for part in parts)
    if key.endswith("_seconds") and isinstance(raw, str):
        return _parse_seconds(raw.strip())
    match = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None or key not in _KINDS or not hasattr(_KINDS[key], "__metadata__"):
        return raw
    number, unit, binary = match.groups("")
    if key.endswith("_bytes"):
        return int(Decimal(number) * (1024 if binary else 1000) ** _EXPONENTS[unit.lower()])
    return int(number) if number == match[0] and number.isdigit() else raw


def _parse_seconds(raw: str) -> object:
    """Return whole seconds, given as a number or as a duration such as "6h"."""
    if raw.isascii() and raw.isdigit():
        return int(raw)
    try:
        seconds, rest = divmod(to_micros(raw), 1_000_000)
    except UserError:
        return raw
    return raw if rest else seconds


def _fits(key: str, value: object) -> bool:
    try:
        msgspec.convert(value, _KINDS[key])
    except msgspec.ValidationError:
        return False
    is_directory = key.endswith("_root") and isinstance(value, str)
    return not is_directory or Path(str(value)).is_absolute()


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield contradictions between settings; a setting with an invalid value is None here."""
    min_files, max_runs = values["compaction.min_files"], values["compaction.max_runs"]
    if min_files is not None and max_runs is not None and min_files > max_runs:
        yield (
            f"compaction.max_runs = {max_runs!r}: expected at least compaction.min_files, which "
            f"is {min_files!r}, or no merge is ever worth while before an epoch has to wait for one"
        )


def _problem(key: str, raw: object, place: str = "") -> str:
    shown = hide_secrets(raw, key) if isinstance(raw, str) else raw
    start = f"{key} = {shown!r}{place}:"
    if key not in _KINDS:
        known = map(_variable_of, _KINDS) if key.startswith(_PREFIX) else _KINDS
        return f"{start} there is no such setting{did_you_mean(key, known)}"
    if key.endswith("_generations"):
        return f"{start} expected whole numbers from 0 to 1,000, such as [0, 1]"
    kind = msgspec.inspect.type_info(_KINDS[key])
    if not isinstance(kind, msgspec.inspect.IntType):
        choices = " or ".join(map(repr, get_args(_KINDS[key])))
        return f"{start} expected {'an absolute directory' if key.endswith('_root') else choices}"
    if key.endswith("_bytes"):
        return f"{start} expected a size of at least {kind.ge:,} bytes, such as '512MiB' or '10GB'"
    if key.endswith("_seconds"):
        return (
            f"{start} expected whole seconds from {kind.ge:,} to {kind.le:,}, or a duration such "
            "as '90s' or '6h'"
        )
    return f"{start} expected a whole number from {kind.ge:,} to {kind.le:,}"


def _error(problems: list[str]) -> SettingsError:
    listed = "".join(f"  {problem}\n" for problem in problems)
    return SettingsError(
        f"{len(problems)} of the settings cannot work:\n{listed}"
        "Correct them where they were set and start again."
    )
