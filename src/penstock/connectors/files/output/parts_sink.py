"""PartsSink: what subtasks of a sink of files do, whichever way the files are committed.

Rows are encoded into open files, or wait in the state with those of other epochs: see `waiting`.
At the barrier the files are uploaded, and named in the commit data. An epoch without rows names
nothing, unless it is the first after a restore, or the last of a job. `PartsConfig` has the
options that all such sinks have.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.committed import EpochRange
from penstock.connectors.files.output.open_parts import OpenParts
from penstock.connectors.files.output.staging import ABANDONED, STAGED, find_abandoned
from penstock.connectors.files.output.waiting import Patience, WaitingRows, waiting_tables
from penstock.core.figures import show_duration
from penstock.core.watermark import CheckpointBarrier, EndOfData, Stop
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.secret_options import usable_options
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.state.tables.specs import TableSpec, global_table

DEFAULT_TARGET_BYTES = 128 * 1024**2
LARGEST_TARGET_BYTES = 4 * 1024**3
"""The largest file: stores copy and create objects of up to 5 GiB in one request."""


class PartsConfig(OperatorConfig):
    """What the configs of sinks of files have alike. Each declares the fields, in its own order."""

    __slots__ = ()

    url: str
    partition_by: Sequence[str]
    target_bytes: int
    min_bytes: int | None
    visible_after_micros: int | None
    store_options: Mapping[str, Any]

    @property
    def patience(self) -> Patience | None:
        """How long rows wait to be written with others; None if they do not."""
        if self.min_bytes is None and self.visible_after_micros is None:
            return None
        return Patience(self.min_bytes, self.visible_after_micros)

    def find_parts_problems(self) -> list[str]:
        """Return what is wrong with these options."""
        problems = []
        if isinstance(self.partition_by, str):
            problems.append(f"partition_by is a text: write [{self.partition_by!r}]")
        if not 1 <= self.target_bytes <= LARGEST_TARGET_BYTES:
            problems.append(
                f"target_bytes is {self.target_bytes}: use 1 to {LARGEST_TARGET_BYTES} (4 GiB)"
            )
        if self.min_bytes is not None and self.min_bytes < 1:
            problems.append(f"min_bytes is {self.min_bytes}: use 1 or more")
        if self.visible_after_micros is not None and self.visible_after_micros < 1:
            problems.append("visible_after is 0: leave it out to see every epoch at once")
        return problems

    def shown_parts(self) -> dict[str, str]:
        """Return what `shown` tells of these options."""
        facts = {}
        if self.partition_by:
            facts["partition_by"] = ", ".join(self.partition_by)
        if self.min_bytes is not None:
            facts["min_bytes"] = str(self.min_bytes)
        if self.visible_after_micros is not None:
            facts["visible_after"] = show_duration(self.visible_after_micros)
        return facts


class _File(Protocol):
    @property
    def bytes(self) -> int: ...


class Staged(Protocol):
    """What one subtask staged in one epoch. As JSON it is the commit data."""

    @property
    def files(self) -> Sequence[_File]:
        """The files, which are durable."""
        ...


PartsConfigT = TypeVar("PartsConfigT", bound=PartsConfig)
PartsT = TypeVar("PartsT", bound=OpenParts[Any])


class PartsSink(Configured[PartsConfigT], ArrowOperator, Generic[PartsConfigT, PartsT]):
    """Writes rows to files. It opens its store once, and keeps it until `release`."""

    def __init__(
        self, config: PartsConfigT, open_output: Callable[..., ObjectStore] = open_store
    ) -> None:
        super().__init__(config)
        self._open_output = open_output
        self._opened: ObjectStore | None = None
        self._parts: PartsT | None = None
        self._waiting: WaitingRows | None = None
        self._has_ended = self._closes = False

    @abstractmethod
    def _new_parts(self, ctx: OperatorContext) -> PartsT:
        """Return what writes the rows of this attempt."""

    @abstractmethod
    def _finish(
        self,
        parts: PartsT | None,
        abandoned: tuple[EpochRange, ...],
        ctx: OperatorContext,
        *,
        is_needed: bool,
    ) -> Staged | None:
        """Upload the rest and return what was staged; None if there is nothing to commit.

        Without rows `parts` may be None. If `is_needed`, the epoch is committed even so.
        """

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [
            global_table(STAGED, str, bytes, uses_two_phase_commit=True),
            # The start of each range of abandoned epochs, by its end.
            global_table(ABANDONED, int, int),
            *waiting_tables(),
        ]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, and upload files that are full; or let them wait."""
        # Rows of an attempt that did not finish must not get into the next one.
        if self.config.patience is not None:
            if self._waiting is None or self._waiting.attempt != ctx.attempt:
                self._waiting = WaitingRows(ctx, ctx.inputs[0].arrow)
            self._waiting.add(batch)
            return
        if self._parts is None or self._parts.attempt != ctx.attempt:
            self._parts = self._new_parts(ctx)
        self._parts.add(batch)

    @override
    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Remember that nothing follows in this run, and whether the data has ended.

        The last epoch may have to be committed even without rows.
        """
        self._closes, self._has_ended = True, isinstance(final, EndOfData)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Upload the rest, then name the files, which are durable by then, in the commit data.

        Rows that may wait go into the state instead.
        """
        parts, waiting = self._parts, self._waiting
        self._parts = self._waiting = None
        if waiting is None or waiting.attempt != ctx.attempt:
            waiting = WaitingRows(ctx, ctx.inputs[0].arrow)
        if parts is not None and parts.attempt != ctx.attempt:
            parts = None
        abandoned, patience = find_abandoned(ctx), self.config.patience
        # The first epoch after a restore is committed even without rows: its commit is how the
        # output tells which epochs were abandoned. What these had shown is shown again.
        is_first = any(end == ctx.epoch for _, end in abandoned)
        closes = self._closes or barrier.then_stop
        if patience is not None and not (is_first or closes or waiting.is_over(patience)):
            waiting.keep(patience)
            return
        if waiting.has_rows:
            parts = parts or self._new_parts(ctx)
            for epoch, rows in waiting.release():
                parts.add(rows, epoch)
        is_last = self._has_ended and ctx.task.subtask.index == 0
        staged = self._finish(parts, abandoned, ctx, is_needed=is_first or is_last)
        if staged is None:
            return
        ctx.count("files_staged", len(staged.files))
        ctx.count("bytes_staged", sum(file.bytes for file in staged.files))
        ctx.insert_committing_data(STAGED, msgspec.json.encode(staged))

    @override
    def release(self) -> None:
        """Drop the store and what an unfinished epoch held."""
        self._parts = self._waiting = self._opened = None

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            options = usable_options(self.config.store_options)
            self._opened = self._open_output(self.config.url, **options)
        return self._opened
