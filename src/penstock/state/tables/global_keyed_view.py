"""A global table as an operator uses it: a small dictionary shared by all subtasks.

What a subtask sees in epoch n: everything that any subtask wrote up to epoch n - 1, folded
in order of epoch, then subtask, and its own writes of epoch n on top. Warm or cold is the
same, because a warm view keeps its own writes apart until it catches up and then folds
them in the place that they have among the others'.

Keys and values of global tables ↔ msgpack: self-describing, typed, never pickle.

A type that msgpack cannot carry is refused when the table is declared. A value that would
come back as something else is refused when it is inserted, not when it is restored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
from msgspec import inspect
from typing_extensions import override

from penstock.errors import ErrorCode, InternalError, StateError, UserError
from penstock.state.files.migration import MigrationStep, migrate_value, plan_migration
from penstock.state.files.reader import StateFileReader
from penstock.state.files.state_file import StateFile
from penstock.state.tables.table import (
    BlindDataTuple,
    DataOperation,
    Frontier,
    TableEnvironment,
    TableEpochCheckpointer,
    View,
)

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_UNORDERED_ENCODER = msgspec.msgpack.Encoder()


class ValueCodec:
    """Encodes and decodes values of one type. Immutable."""

    def __init__(self, value_type: Any, *, what: str) -> None:
        """Refuse a type that does not survive msgpack; `what` names it in messages."""
        self.value_type = value_type
        self._what = what
        try:
            self._decoder = msgspec.msgpack.Decoder(value_type)
            unknown = sorted(set(_foreign_types(inspect.type_info(value_type), set())))
        except (TypeError, ValueError) as error:
            raise _undeclarable(what, value_type, str(error)) from error
        if unknown:
            raise _undeclarable(what, value_type, f"msgpack has no form for {unknown[0]}")

    def encode(self, value: Any) -> bytes:
        """Return the one form of `value`: equal values of the type give equal bytes.

        But for dictionaries with other keys than text, which keep the order of their items.
        """
        try:
            data = _encode(value)
            decoded = self._decoder.decode(data)
            canonical = _encode(decoded)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise self._unsupported(value, str(error)) from error
        if not (decoded == value or (type(decoded) is type(value) and canonical == data)):
            raise self._unsupported(value, f"it would come back as {decoded!r:.80}")
        return canonical

    def encode_key(self, key: Any) -> bytes:
        """Return the one form of a key, which must be hashable, and stay so."""
        data = self.encode(key)
        try:
            hash(key)
            hash(self._decoder.decode(data))
        except TypeError as error:
            raise StateError(
                f"{key!r:.80} of type {type(key).__name__} cannot be a {self._what}: {error}",
                code=ErrorCode.UNSUPPORTED_KEY_TYPE,
                what=self._what,
            ) from error
        return data

    def decode(self, data: bytes) -> Any:
        """Return a new value; changing it changes nothing else."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise StateError(
                f"a stored {self._what} is not a {_name(self.value_type)}: {error}. If the class "
                "has changed, give it the next VERSION and a migration from the old one",
                code=ErrorCode.UNDECODABLE,
                what=self._what,
            ) from error

    def _unsupported(self, value: Any, problem: str) -> StateError:
        return StateError(
            f"{value!r:.80} of type {type(value).__name__} cannot be a {self._what} declared as "
            f"{_name(self.value_type)}: {problem}",
            code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
            what=self._what,
        )


def _encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except TypeError:
        return _UNORDERED_ENCODER.encode(value)


def _foreign_types(node: Any, seen: set[int]) -> Iterator[str]:
    """Yield the types inside a type that msgspec would need a hook for."""
    if isinstance(node, tuple):
        for part in node:
            yield from _foreign_types(part, seen)
    elif isinstance(node, inspect.CustomType):
        yield _name(node.cls)
    elif isinstance(node, msgspec.Struct) and id(node) not in seen:
        seen.add(id(node))
        for field in node.__struct_fields__:
            yield from _foreign_types(getattr(node, field), seen)


def _undeclarable(what: str, value_type: Any, problem: str) -> UserError:
    return UserError(
        f"{_name(value_type)} cannot be the type of a {what}: {problem}. Use builtins, dates, "
        "UUID, Decimal, enums, tuples, dataclasses or msgspec.Struct",
        code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
        what=what,
    )


def _name(value_type: Any) -> str:
    return value_type.__qualname__ if isinstance(value_type, type) else repr(value_type)


GLOBAL_KEY_VALUE_SCHEMA = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]
)
"""msgpack of key and value; a null value is a tombstone."""


@dataclass(frozen=True, slots=True)
class KeyValueTypes:
    """The types of a global table: what its `state_type` is."""

    key_type: Any = Any
    value_type: Any = Any


@dataclass(frozen=True, slots=True)
class GlobalFileReader:
    """Reads and folds the files of one global table at its current version."""

    table_name: str
    environment: TableEnvironment
    types: KeyValueTypes
    state_version: int

    def fold(
        self,
        files: Sequence[StateFile],
        base: Mapping[bytes, bytes] | None = None,
        *,
        known: Mapping[str, Mapping[bytes, bytes | None]] | None = None,
    ) -> dict[bytes, bytes]:
        """Fold files in order on top of `base`: the last write of a key counts.

        `known` holds, by path, the contents of files that need not be read.
        """
        folded = dict(base or {})
        for file in files:
            remembered = (known or {}).get(file.path)
            rows = (
                self.load_with_version(file) if remembered is None else remembered.items()
            )
            for key, value in rows:
                if value is None:
                    folded.pop(key, None)
                else:
                    folded[key] = value
        return folded

    def load_with_version(self, file: StateFile) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield keys and values of one file at the current version, tombstones as None.

        A file of an older version is migrated value by value; keys never change.
        """
        keys, values = self._read(file)
        steps: tuple[MigrationStep, ...] = ()
        if file.state_version != self.state_version:
            steps = plan_migration(
                file.state_version, self.types.value_type, table=self.table_name
            )
        if not steps:
            yield from zip(keys, values, strict=True)
            return
        what = f"value of table {self.table_name!r}"
        old = ValueCodec(steps[0].from_type, what=what)
        new = ValueCodec(self.types.value_type, what=what)
        for key, value in zip(keys, values, strict=True):
            if value is None:
                yield key, None
                continue
            migrated = migrate_value(
                old.decode(value), steps, table=self.table_name, path=file.path
            )
            yield key, new.encode(migrated)

    def _read(self, file: StateFile) -> tuple[list[Any], list[Any]]:
        rows = StateFileReader(self.environment.store, self.environment.cache, file).read()
        if not rows.schema.equals(GLOBAL_KEY_VALUE_SCHEMA):
            raise StateError(
                f"{file.path} does not hold the state of a global table: its columns are "
                f"{rows.schema.names}. Table {self.table_name!r} cannot be read from it",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=self.table_name,
                path=file.path,
            )
        return rows.column("key").to_pylist(), rows.column("value").to_pylist()


K = TypeVar("K")
V = TypeVar("V")


class GlobalKeyedView(View, Generic[K, V]):
    """Key → value state. Values are decoded anew at each read: changing one changes no state.

    Two keys are the same if they encode alike, so 1 and 1.0 are one key of a float table,
    and 0.0 and -0.0 are two. To change a value, insert it again. Inserting what is already
    there is no change, and is not written.
    """

    def __init__(self, reader: GlobalFileReader, files: Sequence[StateFile]) -> None:
        """Fold `files`, which are those of all subtasks."""
        self.table_name = reader.table_name
        self.files: tuple[StateFile, ...] = tuple(files)
        self._reader = reader
        types, name = reader.types, reader.table_name
        self._keys = ValueCodec(types.key_type, what=f"key of table {name!r}")
        self._values = ValueCodec(types.value_type, what=f"value of table {name!r}")
        self._folded = reader.fold(files)
        self._unmerged: dict[bytes, bytes | None] = {}
        """Own writes of earlier epochs that are in files which this view has not folded yet."""
        self._written: dict[str, dict[bytes, bytes | None]] = {}
        """The same writes by file, so that catching up does not read them back."""
        self._changes: dict[bytes, bytes | None] = {}
        """Own writes of this epoch; None for a removed key."""
        self._is_released = False

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return a new copy of the key's value, or `default`."""
        data = self._find(self._keys.encode_key(key))
        return default if data is None else self._values.decode(data)

    def insert(self, key: K, value: V) -> None:
        """Set the key's value, whoever wrote it before."""
        self._change(self._keys.encode_key(key), self._values.encode(value))

    def remove(self, key: K) -> V | None:
        """Remove the key, whoever wrote it, and return the value it had."""
        encoded = self._keys.encode_key(key)
        data = self._find(encoded)
        if data is None:
            return None
        self._change(encoded, None)
        return self._values.decode(data)  # type: ignore[no-any-return]  # decoded by type

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and new copies of their values, in an order that depends on the keys only."""
        for key in sorted(self._known_keys()):
            data = self._find(key)
            if data is not None:
                yield self._keys.decode(key), self._values.decode(data)

    def __contains__(self, key: K) -> bool:
        return self._find(self._keys.encode_key(key)) is not None

    def __len__(self) -> int:
        return sum(self._find(key) is not None for key in self._known_keys())

    @override
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch; nothing in a global table expires."""

    @override
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Hand over the keys whose value this epoch changed."""
        for key, value in self._changes.items():
            operation = DataOperation.TOMBSTONE if value is None else DataOperation.UPSERT
            checkpointer.insert_data(BlindDataTuple(None, key, value, operation))

    @override
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Note that the writes are durable; the files stay unfolded until `catch_up`."""
        if self._changes and files:
            # An epoch's changes are one file, the newest of the subtask's own list.
            self._written[files[-1].path] = self._changes
        self._unmerged.update(self._changes)
        self._changes = {}

    @override
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        """Fold what all subtasks, this one included, have written since."""
        if self._changes:
            raise InternalError(
                f"table {self.table_name!r} was to catch up with other writes while its own are "
                "not checkpointed"
            )
        self._folded = self._reader.fold(missing, self._folded, known=self._written)
        self._unmerged, self._written = {}, {}
        self.files = tuple(files)

    @override
    def release(self) -> None:
        self._folded, self._unmerged, self._changes, self._written = {}, {}, {}, {}
        self._is_released = True

    def _known_keys(self) -> set[bytes]:
        self._check_usable()
        return {*self._folded, *self._unmerged, *self._changes}

    def _find(self, key: bytes) -> bytes | None:
        self._check_usable()
        if key in self._changes:
            return self._changes[key]
        return self._find_before(key)

    def _find_before(self, key: bytes) -> bytes | None:
        """Return what the key had when the epoch started."""
        return self._unmerged[key] if key in self._unmerged else self._folded.get(key)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._check_usable()
        if value == self._find_before(key):
            self._changes.pop(key, None)
        else:
            self._changes[key] = value

    def _check_usable(self) -> None:
        if self._is_released:
            raise InternalError(f"table {self.table_name!r} was used after it was released")
