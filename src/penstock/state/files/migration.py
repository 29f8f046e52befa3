"""State versions: the steps that migrate rows or values of an older version to the current one.

`resolve_chain` and `plan_migration` are pure, and a plan is also the dry run. Migration runs
lazily, when a file is read. Only compaction makes it durable: it rewrites files at the current
version. The old file stays as it is, so older epochs stay restorable. A migration gets rows
with the columns that the class of their version declares. If that class was edited after state
was written with it, its columns do not fit the stored rows, and the read is refused.

    class CountV1(msgspec.Struct):                      # a first type needs no version
        count: int

    class Count(msgspec.Struct, MigratableState):
        VERSION: ClassVar[int] = 2
        PreviousVersion: ClassVar[Any] = CountV1        # version 1, by position
        count: int
        label: str

        @classmethod
        def migrate(cls, previous: CountV1) -> "Count":
            return cls(previous.count, "default")
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import have_same_values, relay
from penstock.core.key_hash import hash_keys_uncut
from penstock.errors import ErrorCode, PenstockError, SchemaError, StateError, UserError


class MigratableState:
    """The base of a state class with a version and a predecessor.

    A value of a global table is an instance of the class, and `migrate` takes an instance
    of `PreviousVersion`. A typed table is described by the class: `SCHEMA` holds its columns,
    and `migrate` takes and returns record batches, row for row, with equal key columns.
    """

    VERSION: ClassVar[int] = 0
    PreviousVersion: ClassVar[Any] = None
    """The type of version `VERSION - 1`; None for the oldest version that can be read."""
    SCHEMA: ClassVar[pa.Schema | None] = None

    @classmethod
    def migrate(cls, previous: Any) -> Any:
        """Return `previous`, state of the version before, as state of this version. Pure."""
        raise NotImplementedError(f"{cls.__name__} does not say how to migrate its state")


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """The migration from one version to the next."""

    from_version: int
    from_type: Any
    to_type: type[MigratableState]

    def __str__(self) -> str:
        to_version = self.from_version + 1
        return f"{self.from_version} → {to_version} ({_name(self.to_type)}.migrate)"


@dataclass(frozen=True, slots=True)
class MigrationChain:
    """The versions that a state class can read, oldest first, without gaps."""

    oldest_version: int
    types: tuple[Any, ...]
    current_version: int
    """The version that is written."""
    is_first_unversioned: bool = False
    """Whether the oldest type declares no version: its state was written with version 0."""

    def position_of(self, version: int) -> int | None:
        """Return which of `types` reads state of a version; None if none of them does."""
        if version == 0 and self.is_first_unversioned:
            return 0
        position = version - self.oldest_version
        return position if 0 <= position < len(self.types) else None


def resolve_chain(state_type: Any) -> MigrationChain:
    """Follow `PreviousVersion` to its end; a chain that cannot work is a `UserError`.

    A type that is no `MigratableState`, or declares no `VERSION`, has version 0. At the end of
    a chain it has the version before its successor, and what it wrote while it was the only
    type, with version 0, is its state as well.
    """
    is_migratable = isinstance(state_type, type) and issubclass(state_type, MigratableState)
    return _resolve(state_type) if is_migratable else MigrationChain(0, (state_type,), 0)


@lru_cache(maxsize=1024)
def _resolve(state_type: type[MigratableState]) -> MigrationChain:
    types: list[Any] = []
    current: Any = state_type
    expected = state_type.VERSION
    while current is not None:
        if current in types:
            raise _broken(state_type, f"{_name(current)} is its own predecessor")
        types.append(current)
        if _is_unversioned(current):
            current = None
        else:
            _check_link(state_type, current, expected)
            current = current.PreviousVersion
        expected -= 1
    return MigrationChain(
        expected + 1,
        tuple(reversed(types)),
        state_type.VERSION,
        is_first_unversioned=_is_unversioned(types[-1]),
    )


def _is_unversioned(kind: Any) -> bool:
    """Tell whether a type declares no version; then it cannot have a predecessor either."""
    if not (isinstance(kind, type) and issubclass(kind, MigratableState)):
        return True
    own = kind.__mro__[: kind.__mro__.index(MigratableState)]
    return kind.PreviousVersion is None and not any("VERSION" in vars(c) for c in own)


def _check_link(state_type: Any, current: type[MigratableState], expected: int) -> None:
    version: Any = current.VERSION
    if (
        isinstance(version, bool)
        or not isinstance(version, int)
        or not 0 <= version < 1 << 32
    ):
        raise _broken(
            state_type, f"{_name(current)}.VERSION is {version!r}, not a whole number"
        )
    if version != expected:
        relation = "repeats" if version == expected + 1 else "does not lead up to"
        raise _broken(
            state_type,
            f"{_name(current)} has version {version}, which {relation} its successor's version "
            f"{expected + 1}; expected {expected}",
        )
    if current.PreviousVersion is not None:
        if version == 0:
            raise _broken(
                state_type, f"{_name(current)} has version 0 and cannot have a predecessor"
            )
        if current.migrate.__func__ is MigratableState.migrate.__func__:  # type: ignore[attr-defined]  # bound classmethods have it
            raise _broken(
                state_type, f"{_name(current)} has a PreviousVersion but no migrate method"
            )


def plan_migration(
    found_version: int, state_type: Any, *, table: str
) -> tuple[MigrationStep, ...]:
    """Return the steps that state of `found_version` needs, or raise `StateError`.

    This runs no step, so it is also the dry run.
    """
    chain = resolve_chain(state_type)
    first = chain.position_of(found_version)
    if first is None:
        advice = "add the missing versions to the chain of PreviousVersion classes"
        if found_version > chain.current_version:
            advice = (
                "it was written by a newer program: run that one, or restore an older epoch"
            )
        raise StateError(
            f"table {table!r} holds state of version {found_version}, but "
            f"{_name(state_type)} understands {chain.oldest_version} to "
            f"{chain.current_version}; {advice}",
            code=ErrorCode.UNSUPPORTED_STATE_VERSION,
            table=table,
            found=found_version,
            expected=chain.current_version,
        )
    return tuple(
        MigrationStep(
            chain.oldest_version + index, chain.types[index], chain.types[index + 1]
        )
        for index in range(first, len(chain.types) - 1)
    )


def migrate_value(
    value: Any, steps: Iterable[MigrationStep], *, table: str, path: str
) -> Any:
    """Run the steps on one value of a global table."""
    for step in steps:
        value = _run(step, value, table=table, path=path)
    return value


def migrate_rows(
    rows: pa.RecordBatch,
    steps: Sequence[MigrationStep],
    *,
    key_columns: Sequence[str],
    table: str,
    path: str,
) -> pa.RecordBatch:
    """Run the steps on rows of a typed table, given without the table's own columns.

    Each step is checked: it must keep the number of rows and the keys, and return the
    declared schema.
    """
    for step in steps:
        migrated = _run(step, rows, table=table, path=path)
        problem = _find_problem(rows, migrated, step.to_type.SCHEMA, key_columns)
        if problem is not None:
            raise _failed(step, problem, table=table, path=path)
        rows = migrated
    return rows


def _find_problem(
    before: pa.RecordBatch, after: Any, schema: pa.Schema | None, key_columns: Sequence[str]
) -> str | None:
    if not isinstance(after, pa.RecordBatch):
        return f"it returned {type(after).__name__}, not a record batch"
    if after.num_rows != before.num_rows:
        return f"it turned {before.num_rows} rows into {after.num_rows}"
    if schema is not None and not after.schema.equals(schema):
        return f"it returned columns {_columns(after.schema)}, not {_columns(schema)}"
    for name in key_columns:
        problem = f"it changed the key column {name!r}; keys decide where state lives"
        if name not in after.schema.names:
            return problem
        old, new = before.column(name), after.column(name)
        # Keys are compared by hash, because every NaN is the same key.
        if old.type != new.type or not np.array_equal(
            hash_keys_uncut([old]), hash_keys_uncut([new])
        ):
            return problem
    return None


def find_typed_chain_problems(state_type: Any, key_columns: Sequence[str]) -> list[str]:
    """Return why the classes of a typed table cannot work: missing schemas, changed keys."""
    problems: list[str] = []
    keys: list[pa.DataType] | None = None
    for kind in resolve_chain(state_type).types:
        schema = getattr(kind, "SCHEMA", None)
        if not isinstance(schema, pa.Schema):
            problems.append(f"{_name(kind)} has no SCHEMA")
            continue
        missing = [name for name in key_columns if name not in schema.names]
        if missing:
            problems.append(f"{_name(kind)}.SCHEMA lacks the key columns {missing}")
            continue
        types = [schema.field(name).type for name in key_columns]
        if keys is not None and types != keys:
            problems.append(f"{_name(kind)}.SCHEMA changes the type of a key column")
        keys = types
    return problems


def _run(step: MigrationStep, previous: Any, *, table: str, path: str) -> Any:
    try:
        return step.to_type.migrate(previous)
    except PenstockError:
        raise
    except Exception as error:
        raise _failed(
            step, str(error) or type(error).__name__, table=table, path=path
        ) from error


def _failed(step: MigrationStep, problem: str, *, table: str, path: str) -> StateError:
    return StateError(
        f"migration step {step} of table {table!r} failed on {path}: {problem}. The file is "
        "unchanged; correct the migration and start again, or restore with the older program",
        code=ErrorCode.MIGRATION_FAILED,
        table=table,
        path=path,
        step=str(step),
    )


def _broken(state_type: Any, problem: str) -> UserError:
    return UserError(
        f"the versions of {_name(state_type)} do not form a chain: {problem}",
        code=ErrorCode.UNSUPPORTED_STATE_VERSION,
        state_type=_name(state_type),
    )


def _name(state_type: Any) -> str:
    return getattr(state_type, "__name__", None) or repr(state_type)


def _columns(schema: pa.Schema) -> str:
    return f"({', '.join(f'{field.name}: {field.type}' for field in schema)})"


def as_declared(
    rows: pa.RecordBatch, state_type: Any, *, table: str, path: str
) -> pa.RecordBatch:
    """Return stored rows as `state_type` declares them; only order and layout may differ."""
    schema: pa.Schema | None = getattr(state_type, "SCHEMA", None)
    if schema is None or rows.schema.equals(schema):
        return rows
    found = {field.name: field.type for field in rows.schema}
    fits = set(found) == set(schema.names) and all(
        have_same_values(found[field.name], field.type) for field in schema
    )
    if not fits:
        raise SchemaError(
            f"{state_type.__name__}.SCHEMA of table {table!r} says {_columns(schema)}, but "
            f"{path}, written with that version, holds {_columns(rows.schema)}. Nothing was "
            "changed; a version that state was written with stays as it is: restore the class "
            "and put the change into a new version",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=table,
            path=path,
        )
    columns = [relay(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
