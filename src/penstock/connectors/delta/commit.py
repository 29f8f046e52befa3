"""Commits an epoch to a Delta table exactly once: look whether it is recorded, else add it.

    open the table         → there is none: create it, and open it again
    is the epoch recorded? → it was committed before: done
    add missing columns    → only if the user lets the table evolve; then open it again
    commit                 → files and the record of the epoch, in one version, or nothing
    conflict, no answer?   → open it again and look, then try again

The record is the transaction of an app: a name and the number of the epoch. Delta does not refuse
a number that is recorded already, so it is read first; and it is read from the very version that
the commit builds on, so another driver that commits the same epoch in between makes this commit
fail with a conflict. Records outlive compactions and checkpoints of the log.

The app's name holds the identity of the job, which neither a branch nor a job that is made anew
under the same name shares. Such a job would count from 1 again and, under one name, all it
commits would be taken for done. A second record, without the identity, tells a start that the
table has epochs which its checkpoints do not know. A third one names the sink by its first epoch
and the name that it had then: a step that is renamed has another app, and the same beginning.

**After a restore** the rows of abandoned epochs come again, under new numbers. Numbers only grow,
so no epoch is taken for done that is not. The first commit after a restore reverses the versions
of abandoned epochs in the same transaction: see `reversal`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from penstock.connectors.delta.actions import AddedFile, RemovedFile
from penstock.connectors.delta.columns import find_column_problems, find_table_problems
from penstock.connectors.delta.marks import Began, Mark
from penstock.connectors.delta.table import CommitOutcome, DeltaTables, OpenTable
from penstock.core.ids import Epoch, TaskInfo
from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    SchemaError,
    StateError,
    UnknownOutcomeError,
    hide_secrets,
)
from penstock.operators.context import OperatorContext, StartContext
from penstock.state.tables.specs import TableSpec, global_table

_ATTEMPTS = 20
"""How often a commit is tried that other writers overtake; each time one of them has succeeded."""
WRITTEN = "written"
"""The table of the sink's state that tells to which Delta tables it has written."""
BEGAN = "began"
"""The table of the sink's state that tells when it began, and under which name."""
_RETENTION = "delta.setTransactionRetentionDuration"

_log = logging.getLogger(__name__)


def app_of(task: TaskInfo, identity: str, step: str | None = None) -> str:
    """Return the name under which a sink's epochs are recorded; `step` is another name it had."""
    return f"{name_of(task, step)}:{identity}"


def name_of(task: TaskInfo, step: str | None = None) -> str:
    """Return the part of it that any job of this name shares."""
    return f"penstock:{task.job}:{task.operator if step is None else step}"


CarryOut: TypeAlias = Callable[[OpenTable, Sequence[Mark]], CommitOutcome]
"""What makes the commit itself, on the version that was looked at, with its record."""


@dataclass(frozen=True, slots=True)
class TableRules:
    """What a sink asks of its table, and how it makes one."""

    columns: pa.Schema
    """The rows' columns, in types of Delta."""
    partition_by: tuple[str, ...]
    evolves: bool
    merges: bool
    properties: dict[str, str | None]


def decide_is_recorded(recorded: int | None, epoch: int) -> bool:
    """Return whether an epoch was committed before: epochs are committed in order.

    >>> decide_is_recorded(None, 1), decide_is_recorded(6, 7), decide_is_recorded(7, 7)
    (False, False, True)
    """
    return recorded is not None and recorded >= epoch


def find_recorded(table: OpenTable, app: str, began: Began | None) -> int | None:
    """Return the last epoch that a sink has committed, under whatever name; None if there is none."""
    apps = [app] if began is None else [app, began.record]
    found = [table.recorded_epoch(each) for each in apps]
    return max((epoch for epoch in found if epoch is not None), default=None)


class EpochCommit:
    """The commit of one epoch. Made anew for each."""

    def __init__(
        self,
        tables: DeltaTables,
        rules: TableRules,
        task: TaskInfo,
        identity: str,
        epoch: Epoch,
        *,
        began: Began | None = None,
        is_known: bool = False,
    ) -> None:
        """Commit an epoch; `is_known` says that this driver has committed to the table before."""
        self._tables = tables
        self._is_known = is_known
        self._rules = rules
        self._marks = (
            Mark(app_of(task, identity), int(epoch), began=began),
            Mark(name_of(task), int(epoch)),
            *([] if began is None else [Mark(began.record, int(epoch))]),
        )
        self._began = began
        self._epoch = epoch

    def run(self, carry_out: CarryOut) -> None:
        """Commit by `carry_out`, unless the epoch is recorded."""
        try:
            for _ in range(_ATTEMPTS):
                if self._try(carry_out):
                    return
        except UnknownOutcomeError as error:
            # The driver tries again, and then sees what became of it.
            raise ExternalError(error.message) from error
        raise ExternalError(
            f"epoch {self._epoch} could not be committed to the Delta table {self._tables.url}: "
            f"other writers were first, {_ATTEMPTS} times in a row. It is tried again"
        )

    def _try(self, carry_out: CarryOut) -> bool:
        """Do the next thing that there is to do; return whether the epoch is committed."""
        table = self._tables.open()
        if table is None:
            if self._is_known:
                warn_of_lost_table(self._tables.url, f"before epoch {self._epoch}")
            rules = self._rules
            self._tables.create(rules.columns, rules.partition_by, rules.properties)
            return False
        if self._is_recorded(table):
            return True
        missing = self.check(table)
        if missing:
            table.add_columns(missing)
            return False
        try:
            return carry_out(table, self._marks) is CommitOutcome.DONE
        except PenstockError:
            # No answer; or a driver that took the job over has committed the epoch meanwhile, and
            # removed what was staged for it.
            found = self._tables.open()
            if found is not None and self._is_recorded(found):
                return True
            raise

    def check_partitions(self, staged_by: tuple[str, ...]) -> None:
        """Refuse to commit files of other partitions than the sink has now.

        A commit that was left open is carried out by the next driver, whose program may say
        something else. The values of one column would then be taken for those of another.
        """
        partition_by = self._rules.partition_by
        if staged_by == partition_by:
            return
        table = self._tables.open()
        if table is not None and self._is_recorded(table):
            return
        problem = (
            f"epoch {self._epoch} is acknowledged and not yet committed, and its files are "
            f"partitioned by {list(staged_by)}; the sink has partition_by={list(partition_by)} "
            f"now. Nothing was changed. Start the job with partition_by={list(staged_by)}, which "
            "commits the epoch, and write to another table for other partitions; or restore an "
            "earlier epoch, whose rows are written again"
        )
        raise misfit(self._tables.url, [problem])

    def _is_recorded(self, table: OpenTable) -> bool:
        recorded = find_recorded(table, self._marks[0].app, self._began)
        return decide_is_recorded(recorded, self._epoch)

    def check(self, table: OpenTable) -> list["pa.Field[Any]"]:
        """Refuse a table that does not fit; return the columns that it has to get."""
        problems, missing = find_problems(table, self._rules)
        if problems:
            raise misfit(self._tables.url, problems)
        return missing


def warn_of_lost_table(url: str, when: str) -> None:
    """Warn that a table is gone to which the job has committed; `when` it has done so."""
    _log.warning(
        "the Delta table %s is gone, to which this job has written %s. A new one is "
        "made; the rows of earlier epochs are not in it. Go back to an earlier epoch (restore=) to "
        "have them written again",
        url,
        when,
    )


def written_table() -> TableSpec:
    """Declare the table that tells which Delta tables the sink has written to, since which epoch.

    The names are those of `name_of_written`.
    """
    return global_table(WRITTEN, str, int)


def began_table() -> TableSpec:
    """Declare the table of one row that tells the name and the first epoch of a sink's beginning.

    It goes on with the state when a step is renamed, and a step that is new has none.
    """
    return global_table(BEGAN, str, int)


def find_began(ctx: OperatorContext) -> tuple[str, int]:
    """Return the name that a sink's step had at first, and its first epoch; store a new one."""
    table = ctx.get_global_keyed_state(BEGAN)
    for step, epoch in table.items():
        return step, epoch
    step, epoch = str(ctx.task.operator), int(ctx.epoch)
    if ctx.task.subtask.index == 0:
        table.insert(step, epoch)
    return step, epoch


def name_of_written(url: str) -> str:
    """Return the name of a Delta table in the sink's state, where no secret may be."""
    return hide_secrets(url)


def _check_lost(url: str, ctx: StartContext) -> None:
    """Warn of a table that is not there if the job has committed to it.

    The last epoch of the job may still wait for its commit. All before it are committed.
    """
    since = ctx.read_global(written_table()).get(name_of_written(url))
    if since is not None and since < ctx.read_last_epoch():
        warn_of_lost_table(url, f"since epoch {since}")


def find_problems(
    table: OpenTable, rules: TableRules
) -> tuple[list[str], list["pa.Field[Any]"]]:
    """Return why rows cannot be written to a table, and the columns that it has to get."""
    metadata = table.metadata
    problems = find_table_problems(
        table.schema,
        metadata.partition_columns,
        metadata.configuration,
        table.writer_features,
        partition_by=rules.partition_by,
        merges=rules.merges,
    )
    more, missing = find_column_problems(rules.columns, table.schema, evolves=rules.evolves)
    return problems + more, missing


def misfit(url: str, problems: Sequence[str]) -> SchemaError:
    """Return the error for a table that cannot take the rows."""
    return SchemaError(
        f"the rows cannot be written to the Delta table {url}:\n  " + "\n  ".join(problems),
        problems=tuple(problems),
    )


def find_other_properties(
    wanted: Mapping[str, str | None], configuration: Mapping[str, str | None]
) -> list[str]:
    """Return the properties whose values in a table are not those that the sink would give it.

    >>> find_other_properties({"delta.a": "1", "delta.b": "2"}, {"delta.a": "1"})
    ["delta.b is not set, and '2' is asked for"]
    """
    others = []
    for name, value in sorted(wanted.items()):
        found = configuration.get(name)
        if found != value:
            there = "not set" if found is None else repr(found)
            asked = "no value" if value is None else repr(value)
            others.append(f"{name} is {there}, and {asked} is asked for")
    return others


def check_start(tables: DeltaTables, rules: TableRules, ctx: StartContext) -> None:
    """Refuse a start whose epochs the table could not take; it changes nothing."""
    table = tables.open()
    if table is None:
        _check_lost(tables.url, ctx)
        return
    problems, _ = find_problems(table, rules)
    if problems:
        raise misfit(tables.url, problems)
    configuration = table.metadata.configuration
    others = find_other_properties(rules.properties, configuration)
    if others:
        _log.warning(
            "the Delta table %s is there already, and properties= is for a table that the sink "
            "creates. These stay as they are: %s. Change them at the table, as with "
            "DeltaTable(…).alter.set_table_properties(…), or leave them out",
            tables.url,
            ", ".join(others),
            extra={"job": str(ctx.task.job), "operator": str(ctx.task.operator)},
        )
    kept = configuration.get(_RETENTION)
    if kept is not None:
        _log.warning(
            "the Delta table %s forgets which epochs it has after %s (%s). A commit that is left "
            "open for longer and then repeated would double its rows: unset the property",
            tables.url,
            kept,
            _RETENTION,
            extra={"job": str(ctx.task.job), "operator": str(ctx.task.operator)},
        )
    # In this order: a driver that still runs acknowledges an epoch before it commits it.
    recorded = table.recorded_epoch(name_of(ctx.task))
    last = ctx.read_last_epoch() if recorded is not None else 0
    if recorded is not None and recorded > last:
        job, step = ctx.task.job, ctx.task.operator
        known = f"know none after {last}" if last else "have none of this job"
        raise StateError(
            f"step {str(step)!r} of job {str(job)!r} writes to the Delta table {tables.url}, "
            f"which has epoch {recorded} of a step of this name, and the checkpoints {known}: "
            "they were deleted, or are not the ones that belong to this table. Nothing was "
            "changed. Name the checkpoints that belong to it, or give the step another name to "
            "write beside the rows that are there, or write to another table",
            code=ErrorCode.FOREIGN_OBJECT,
            operator=str(step),
            url=tables.url,
        )


def append(
    files: Sequence[AddedFile], find_reversed: "Callable[[OpenTable], Reversal]"
) -> CarryOut:
    """Return the commit that adds files, and takes out those of abandoned epochs."""

    def carry_out(table: OpenTable, marks: Sequence[Mark]) -> CommitOutcome:
        undone = find_reversed(table)
        added = [*files, *undone.added]
        if not added and not undone.removed and not undone.must_record:
            return CommitOutcome.DONE  # the end of a job without rows: there is a table
        return table.commit(added, undone.removed, undone.to_recorded(marks))

    return carry_out


@dataclass(frozen=True, slots=True)
class Reversal:
    """The actions that undo the versions of abandoned epochs."""

    added: tuple[AddedFile, ...] = ()
    removed: tuple[RemovedFile, ...] = ()
    problem: str | None = None
    """Why not all of it can be taken out; None if it can."""
    missing: tuple[str, ...] = ()
    """Files that are to be put back and cannot be: without them rows would be lost."""
    is_certain: bool = True
    """Whether it is known that rows stay; else they may have been deleted by others."""
    must_record: bool = False
    """Whether the epoch is to be recorded even if it changes nothing: a commit of an abandoned one
    that comes late would count otherwise."""
    brings_back: bool = False
    """Whether it undoes versions that only undid others: what these took out comes back."""
    undoes: tuple[Began, ...] = ()
    """The other lives of the sink of which it undoes versions."""
    late: tuple[str, ...] = ()
    """Apps under which abandoned epochs may still be committed, late: with them the epoch before
    this one is recorded. This one itself may be still to come, from a step that has such a name."""

    def to_recorded(self, marks: Sequence[Mark]) -> list[Mark]:
        """Return what the commit of an epoch records that undoes these; the first is its mark."""
        first = msgspec.structs.replace(marks[0], undoes=self.undoes)
        return [first, *marks[1:], *(Mark(app, first.belongs_to - 1) for app in self.late)]
