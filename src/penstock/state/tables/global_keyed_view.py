"""A global table as an operator uses it: a small dictionary shared by all subtasks.

What a subtask sees in epoch n: everything that any subtask wrote up to epoch n - 1, folded
in order of epoch, then subtask, and its own writes of epoch n on top. Warm or cold is the
same, because a warm view keeps its own writes apart until it catches up and then folds
them in the place that they have among the others'.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from penstock.errors import InternalError
from penstock.state.files.state_file import StateFile
from penstock.state.tables.global_keyed_files import GlobalFileReader
from penstock.state.tables.table import (
    BlindDataTuple,
    DataOperation,
    Frontier,
    TableEpochCheckpointer,
    View,
)
from penstock.state.tables.value_codec import ValueCodec

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

    def advance(self, frontier: Frontier) -> None:
        """Start an epoch; nothing in a global table expires."""

    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Hand over the keys whose value this epoch changed."""
        for key, value in self._changes.items():
            operation = DataOperation.TOMBSTONE if value is None else DataOperation.UPSERT
            checkpointer.insert_data(BlindDataTuple(None, key, value, operation))

    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Note that the writes are durable; the files stay unfolded until `catch_up`."""
        if self._changes and files:
            # An epoch's changes are one file, the newest of the subtask's own list.
            self._written[files[-1].path] = self._changes
        self._unmerged.update(self._changes)
        self._changes = {}

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

    def release(self) -> None:
        """Let go of all values."""
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
