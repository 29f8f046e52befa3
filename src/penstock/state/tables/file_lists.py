"""File lists ↔ the messages that hold them. All table kinds keep the same: a list of files."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

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


def files_of(message: FileListMessage | None) -> tuple[StateFile, ...]:
    """Return the files of a message; none for no message."""
    if message is None:
        return ()
    return tuple(_file_of(file.SerializeToString()) for file in message.files)


@lru_cache(maxsize=16_384)
def _file_of(data: bytes) -> StateFile:
    """Decode one entry; lists are read many times and their entries never change."""
    return StateFile.from_proto(state_pb2.StateFile.FromString(data))


def message_of(kind: type[MessageT], files: Iterable[StateFile]) -> MessageT:
    """Return a message of `kind` that holds `files`."""
    return kind(files=[_entry_of(file) for file in files])


@lru_cache(maxsize=16_384)
def _entry_of(file: StateFile) -> state_pb2.StateFile:
    """Encode one entry; making a message copies it, so nobody changes this one."""
    return file.to_proto()


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
