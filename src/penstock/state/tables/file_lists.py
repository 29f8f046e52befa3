"""File lists ↔ the messages that hold them. All table kinds keep the same: a list of files."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from penstock.core.recent import Recent
from penstock.state.files.state_file import StateFile, apply_swap
from penstock.state.proto import state_pb2


class FileListMessage(Protocol):
    """A message with a list of files."""

    def __init__(self, *, files: Iterable[state_pb2.StateFile] = ...) -> None:
        """Make a message that holds `files`."""

    @property
    def files(self) -> Iterable[state_pb2.StateFile]:
        """The files, oldest first."""


MessageT = TypeVar("MessageT", bound=FileListMessage)

# Lists are read and written many times while their entries never change.
_decoded: Recent[bytes, StateFile] = Recent(16_384)
_encoded: Recent[StateFile, state_pb2.StateFile] = Recent(16_384)


def files_of(message: FileListMessage | None) -> tuple[StateFile, ...]:
    """Return the files of a message; none for no message."""
    if message is None:
        return ()
    return tuple(_file_of(file.SerializeToString()) for file in message.files)


def _file_of(data: bytes) -> StateFile:
    """Return the decoded entry."""
    known = _decoded.get(data)
    if known is not None:
        return known
    return _decoded.put(data, StateFile.from_proto(state_pb2.StateFile.FromString(data)))


def message_of(kind: type[MessageT], files: Iterable[StateFile]) -> MessageT:
    """Return a message of `kind` that holds `files`."""
    return kind(files=[_entry_of(file) for file in files])


def _entry_of(file: StateFile) -> state_pb2.StateFile:
    """Return the encoded entry; making a message copies it, so nobody changes this one."""
    known = _encoded.get(file)
    return _encoded.put(file, file.to_proto()) if known is None else known


def groups_of(outputs: Sequence[StateFile]) -> list[list[StateFile]]:
    """Sort compacted files by what they replace: each group is swapped in as a whole."""
    groups: dict[tuple[str, ...], list[StateFile]] = {}
    for file in outputs:
        groups.setdefault(file.replaces, []).append(file)
    return list(groups.values())


def apply_swaps(
    files: Sequence[StateFile], outputs: Sequence[StateFile]
) -> tuple[StateFile, ...]:
    """Swap in every compacted group whose exact inputs still stand; leave the rest as it is."""
    current = tuple(files)
    for group in groups_of(outputs):
        current = apply_swap(current, group) or current
    return current
