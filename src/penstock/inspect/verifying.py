"""Verifies a job's checkpoints: every byte that a kept epoch needs, and the rules of the protocol.

Nothing is changed, and no claim is made. A job that runs meanwhile may give epochs up: what is
missing then is looked for again, and counts only if its epoch is still kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core.figures import show_bytes, show_count
from penstock.core.ids import JobId, checksum_of
from penstock.errors import PenstockError
from penstock.state.checkpoints import JobCheckpoints, ParquetBackend
from penstock.state.protocol.paths import epochs_folder, number_of
from penstock.state.protocol.reading import (
    read_epoch_record,
    read_identity,
    read_status,
)
from penstock.state.protocol.records import (
    Committing,
    Invisible,
    Superseded,
    Unacknowledged,
)
from penstock.state.storage.create import run_steps
from penstock.state.storage.urls import StorePlace, to_store
from penstock.state.tables.table import files_of


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found."""

    job: str
    epochs: int
    """How many epochs were looked at."""
    objects: int
    """How many objects were read, each once."""
    size_bytes: int
    problems: tuple[str, ...]
    """What is wrong, each with the object or epoch it is about; empty if all is well."""

    @property
    def is_whole(self) -> bool:
        """Whether every kept epoch could be restored now."""
        return not self.problems

    def __str__(self) -> str:
        head = (
            f"job {self.job}: {show_count(self.epochs, 'epoch')}, "
            f"{show_count(self.objects, 'object')}, {show_bytes(self.size_bytes)} read"
        )
        if self.is_whole:
            return f"{head}. All of them are whole"
        return "\n".join(
            [
                f"{head}. {show_count(len(self.problems), 'problem')}:",
                *(f"  {each}" for each in self.problems),
            ]
        )


def verify_job(url: StorePlace, job: str, **store_options: Any) -> Verified:
    """Read everything that the kept epochs of a job need, and check it.

    >>> import penstock as pen
    >>> p = pen.Pipeline("numbers")
    >>> p.read("in", pen.impulse(count=10)).write("out", pen.blackhole())
    >>> status = p.run_in_process("memory:doctest-of-verifying")
    >>> verify_job("memory:doctest-of-verifying", "numbers").is_whole
    True
    """
    checkpoints = JobCheckpoints(to_store(url, **store_options), JobId(job))
    checkpoints.require_claim()
    return _Verification(checkpoints).run()


class _Verification:
    """One verification: it reads each object once, however many epochs need it."""

    def __init__(self, checkpoints: JobCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._backend = ParquetBackend(checkpoints.store)
        self._found: dict[str, str | None] = {}
        """What is wrong with each object that was read; None if it is whole."""
        self._bytes = 0

    def run(self) -> Verified:
        checkpoints = self._checkpoints
        state = checkpoints.read_retention()
        identity = run_steps(checkpoints.store, read_identity(checkpoints.job))
        first = 1 if identity is None else int(identity.first_epoch)
        newest = checkpoints.last_epoch()
        numbers = {
            *range(max(int(state.collected_before), first), newest + 1),
            *(int(pin.ref.epoch) for pin in state.pins),
        }
        problems = list(self._find_hidden(newest))
        for number in sorted(numbers, reverse=True):
            found = list(self._find_problems(number, is_newest=number == newest))
            if found and self._is_kept(number):
                problems += found
        return Verified(
            str(checkpoints.job),
            len(numbers),
            len(self._found),
            self._bytes,
            tuple(dict.fromkeys(problems)),
        )

    def _is_kept(self, number: int) -> bool:
        """Return whether an epoch is still kept: a driver that runs may have given it up."""
        state = self._checkpoints.read_retention()
        is_pinned = any(int(pin.ref.epoch) == number for pin in state.pins)
        return is_pinned or number >= state.collected_before

    def _find_hidden(self, newest: int) -> Iterator[str]:
        """Find records behind a gap: whoever searches for the newest one does not see them."""
        folder = epochs_folder(self._checkpoints.job)
        listed = [number_of(info.path) for info in self._checkpoints.store.list(folder)]
        hidden = sorted(each for each in listed if each is not None and each > newest)
        if hidden and self._checkpoints.last_epoch() == newest:
            yield (
                f"the record of epoch {newest + 1} is gone, so that epochs up to {hidden[-1]} "
                "are not seen: bring it back"
            )

    def _find_problems(self, number: int, *, is_newest: bool) -> Iterator[str]:
        checkpoints = self._checkpoints
        try:
            record = run_steps(
                checkpoints.store, read_epoch_record(checkpoints.job, number)
            )
            if record is None:
                yield f"the record of epoch {number} is gone"
                return
            status = run_steps(checkpoints.store, read_status(record.ref, record))
            manifest = checkpoints.manifest(record.ref)
        except PenstockError as error:
            yield error.message
            return
        # A restore may skip a damaged commit: such an epoch is abandoned, and stays open.
        if isinstance(status, Unacknowledged | Superseded | Invisible):
            yield f"{record.ref} is kept, and it is {type(status).__name__.lower()}"
        elif isinstance(status, Committing) and not is_newest and self._is_ancestor(number):
            yield f"{record.ref} is built on, and its sinks have not committed"
        for operator in manifest.operators:
            for subtask in operator.subtasks:
                yield from self._check_metadata(subtask)

    def _is_ancestor(self, number: int) -> bool:
        """Return whether the newest epoch descends from one."""
        return any(
            int(epoch.record.ref.epoch) == number and epoch.canonical is True
            for epoch in self._checkpoints.epochs()
        )

    def _check_metadata(self, subtask: Any) -> Iterator[str]:
        if subtask.path in self._found:
            problem = self._found[subtask.path]
            if problem is not None:
                yield problem
            return
        self._found[subtask.path] = None
        self._bytes += subtask.size_bytes
        try:
            metadata = self._backend.read_operator_checkpoint_metadata(subtask)
        except PenstockError as error:
            self._found[subtask.path] = error.message
            yield error.message
            return
        for name, table in metadata.table_checkpoint_metadata.items():
            for file in files_of(table, table=name):
                problem = self._check_file(file.path, file.size_bytes, file.checksum)
                if problem is not None:
                    yield problem

    def _check_file(self, path: str, size_bytes: int, checksum: int) -> str | None:
        if path not in self._found:
            self._bytes += size_bytes
            data = self._checkpoints.store.read(path)
            problem = None
            if data is None:
                problem = f"the state file {path!r} is gone"
            elif (len(data), checksum_of(data)) != (size_bytes, checksum):
                problem = f"the state file {path!r} is not what was written"
            self._found[path] = problem
        return self._found[path]
