"""A sink that commits by parts into a folder, and what can befall each of its parts.

Every part of an epoch becomes one file. Several processes may write the same part: the file
is created whole or not at all, and a second write must be of the same rows.
"""

import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.memory import STAGED, StagingSink
from penstock.core.batch import from_ipc, to_ipc
from penstock.core.clock import new_token
from penstock.core.ids import Epoch
from penstock.errors import ExternalError, StorageError
from penstock.operators.context import CommitContext, CommitPart

AS_A_JOB = 1 << 30
"""A size that no driver takes upon itself."""
_INSTANCES = count()


def claim_mark(folder: str, name: str) -> bool:
    """Create a mark; return whether this was the first time."""
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class PartSink(StagingSink):
    """Writes what each subtask staged as a part of its own; `harm` befalls the first attempt.

    | harm | what the first attempt at part 1 does |
    |---|---|
    | "storage", "external", "code" | raises an error of that kind |
    | "dies" | kills its process |
    | "hangs" | waits for ever |
    """

    def __init__(
        self, folder: str | Path, *, size_bytes: int = 0, harm: str | None = None
    ) -> None:
        super().__init__()
        self.folder = str(folder)
        self.size_bytes = size_bytes
        self.harm = harm
        self.instance: str | None = None

    def name(self) -> str:
        return "parts"

    def plan_commit(
        self, epoch: Epoch, commit_data: Mapping[str, Mapping[int, bytes]], ctx: Any
    ) -> Sequence[CommitPart]:
        staged = commit_data[STAGED]
        return [CommitPart(staged[index], self.size_bytes) for index in sorted(staged)]

    def handle_commit_part(self, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
        if self.instance is None:
            self.instance = f"{os.getpid()}-{next(_INSTANCES)}"
        number = ctx.task.subtask.index
        note = {
            "epoch": int(epoch),
            "part": number,
            "parts": ctx.task.subtask.parallelism,
            "operator": str(ctx.task.operator),
            "identity": ctx.identity,
            "instance": self.instance,
            "attempt": str(ctx.attempt),
            "pid": os.getpid(),
        }
        Path(self.folder, f"note-{ctx.attempt}").write_text(json.dumps(note))
        if self.harm is not None and number == 1 and claim_mark(self.folder, "struck"):
            self._strike(self.harm)
        write_whole(Path(self.folder, f"rows-{epoch}-{number}"), text_of(part))
        print(f"part {number} of epoch {epoch}")  # noqa: T201 (what users may do)

    def _strike(self, harm: str) -> None:
        match harm:
            case "storage":
                raise StorageError("the disk is away")
            case "external":
                raise ExternalError("the server is away")
            case "code":
                raise ValueError("the code is wrong")
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                threading.Event().wait()

    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Find every part done: this is called after the last of them."""
        for number, index in enumerate(sorted(commit_data[STAGED])):
            text = text_of(commit_data[STAGED][index])
            assert Path(self.folder, f"rows-{epoch}-{number}").read_text() == text
        claim_mark(self.folder, f"whole-{epoch}")

    def release(self) -> None:
        if self.instance is not None:
            claim_mark(self.folder, f"released-{self.instance}")


def write_whole(path: Path, text: str) -> None:
    """Create a file whole, or find the same there."""
    beside = path.with_name(f".{new_token()}")
    beside.write_text(text)
    try:
        os.link(beside, path)
    except FileExistsError:
        assert path.read_text() == text, f"{path.name} was written twice, with other rows"
    beside.unlink()


def text_of(staged: bytes) -> str:
    """Return staged rows as text."""
    return json.dumps(from_ipc(staged).to_pylist(), default=str)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return all rows that were committed."""
    written = sorted(folder.glob("rows-*"))
    return [row for path in written for row in json.loads(path.read_text())]


def notes_in(folder: Path) -> list[dict[str, Any]]:
    """Return what the attempts at parts have noted, in order of epoch and part."""
    notes = [json.loads(path.read_text()) for path in folder.glob("note-*")]
    return sorted(notes, key=lambda note: (note["epoch"], note["part"]))


def staged_rows(rows: pa.Table) -> bytes:
    """Return rows in the form in which a subtask stages them."""
    return to_ipc(rows.to_batches(), rows.schema)
