"""Decides what a start does to the state of every step, and says it in the user's words.

Pure. State is kept under the name of its step. A step that is gone, a table that changed its
kind, or a state version that cannot be read would lose state silently. Such a start is refused,
with all problems at once, unless dropping is allowed explicitly. `decide_fates` is the one
decision: a start obeys it, and `Pipeline.check` shows it.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from penstock.core.ids import OperatorId
from penstock.errors import ErrorCode, PenstockError, StateError
from penstock.operators.operator import SPLITS_TABLE
from penstock.operators.timers import TIMER_TABLES
from penstock.state.checkpoints import Metadata
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.tables.column_groups import GroupChange, GroupFate
from penstock.state.tables.fit import TableFate, TablePlan, plan_table_restore
from penstock.state.tables.specs import TableSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Fate(StrEnum):
    """What a start does to a part of the state."""

    KEPT = "kept"
    MIGRATED = "migrated"
    EMPTY = "starts empty"
    DROPPED = "dropped"
    """It is given up, because `allow_dropped_state` allows that."""
    REFUSED = "refused"
    """The job does not start because of it."""


_FATES = {
    TableFate.UNCHANGED: Fate.KEPT,
    TableFate.MIGRATED: Fate.MIGRATED,
    TableFate.NEW: Fate.EMPTY,
    TableFate.DROPPED: Fate.DROPPED,
    TableFate.INCOMPATIBLE: Fate.REFUSED,
}
_GROUP_FATES = {
    GroupFate.RECORDED: Fate.KEPT,
    GroupFate.RENAMED: Fate.KEPT,
    GroupFate.ADDED: Fate.EMPTY,
    GroupFate.DROPPED: Fate.DROPPED,
    GroupFate.CHANGED: Fate.REFUSED,
}
_OWN_TABLES = {SPLITS_TABLE: "read positions"} | dict.fromkeys(
    TIMER_TABLES.values(), "timers"
)
"""What the tables that Penstock keeps on behalf of steps are for."""
_LOSES = "pass allow_dropped_state=True to give it up"
_ANEW = (
    "undo the change; or give the step another name and pass allow_dropped_state=True, and it "
    "starts empty"
)


@dataclass(frozen=True, slots=True)
class StepState:
    """What a start does to one table of a step, or to a step as a whole."""

    step: str
    table: str | None
    """None if it is about the step as a whole."""
    fate: Fate
    detail: str = ""
    """The reason, or how much there is."""
    advice: str = ""
    """What makes the start possible, if it is refused."""
    code: ErrorCode = ErrorCode.NOT_RESTORABLE
    is_news: bool = False
    """Whether a start logs a warning about it, because results may be others than expected."""

    def __str__(self) -> str:
        named = "" if self.table is None else f", {shown_table(self.table)}"
        detail = self.detail or self.fate.value
        advice = f". To start: {self.advice}" if self.advice else ""
        return f"step {self.step!r}{named}: {detail}{advice}"


def shown_table(table: str) -> str:
    """Return a table as people call it.

    >>> shown_table("totals"), shown_table(SPLITS_TABLE)
    ("table 'totals'", 'read positions')
    """
    return _OWN_TABLES.get(table, f"table {table!r}")


def decide_fates(
    declared: Mapping[OperatorId, Sequence[TableSpec]],
    stored: Mapping[OperatorId, Mapping[int, Metadata]],
    *,
    allow_dropped: bool = False,
    renamed: Mapping[OperatorId, OperatorId] | None = None,
) -> tuple[StepState, ...]:
    """Return what a start does to all state that is declared or stored, step by step.

    `stored` is the metadata of the checkpoint that the start goes on from, by subtask. It is
    under the steps' new names; `renamed` has the old ones.
    """
    fates: list[StepState] = []
    for operator, specs in declared.items():
        plans = plan_table_restore(specs, stored.get(operator, {}))
        old = None if renamed is None else renamed.get(operator)
        for plan in plans:
            groups = [
                _of_group(operator, g, allow_dropped=allow_dropped) for g in plan.groups
            ]
            if not any(g.fate is GroupFate.CHANGED for g in plan.groups):
                state = _of_table(operator, plan, allow_dropped=allow_dropped)
                was = "" if old is None else f", of step {str(old)!r}"
                fates.append(replace(state, detail=f"{state.detail}{was}"))
            # A step may keep the same aggregates in several tables.
            fates += (g for g in groups if g is not None and g not in fates)
    gone = [operator for operator in stored if operator not in declared]
    fates += (_of_missing(operator, allow_dropped=allow_dropped) for operator in gone)
    return tuple(fates)


def _of_table(operator: OperatorId, plan: TablePlan, *, allow_dropped: bool) -> StepState:
    fate, advice = _FATES[plan.fate], ""
    if plan.fate is TableFate.INCOMPATIBLE:
        advice = _ANEW
    elif plan.fate is TableFate.DROPPED and not allow_dropped:
        fate, advice = (
            Fate.REFUSED,
            f"undo the change, so that the step declares it again; or {_LOSES}",
        )
    detail = "" if fate is Fate.EMPTY else plan.detail
    code = plan.code or ErrorCode.NOT_RESTORABLE
    return StepState(operator, plan.table, fate, detail, advice, code)


def _of_group(
    operator: OperatorId, change: GroupChange, *, allow_dropped: bool
) -> StepState | None:
    """Return what a start does to a group of columns, such as an aggregate; None if nothing."""
    if change.fate is GroupFate.KEPT:
        return None
    fate, advice, code = _GROUP_FATES[change.fate], "", ErrorCode.NOT_RESTORABLE
    if change.fate is GroupFate.DROPPED and not allow_dropped:
        fate, code = Fate.REFUSED, ErrorCode.NO_REGISTERED_TABLE
        advice = (
            f"undo the change; if an aggregate has only another name, write "
            f".was({change.group!r}) behind it; or {_LOSES}"
        )
    elif change.fate is GroupFate.CHANGED:
        code = ErrorCode.SCHEMA_MISMATCH
        advice = f"undo the change; or give it another name, to start empty, and {_LOSES}"
        if change.is_whole:
            advice = _ANEW
    is_news = change.fate in (GroupFate.ADDED, GroupFate.RECORDED)
    return StepState(operator, None, fate, change.detail, advice, code, is_news)


def _of_missing(operator: OperatorId, *, allow_dropped: bool) -> StepState:
    detail = "it has state, and the pipeline has no such step"
    if allow_dropped:
        return StepState(operator, None, Fate.DROPPED, detail)
    return StepState(
        operator,
        None,
        Fate.REFUSED,
        detail,
        f'put the step back under this name, pass renamed={{{str(operator)!r}: "…"}} if it has '
        f"another name, or {_LOSES}",
        ErrorCode.NO_REGISTERED_TABLE,
    )


@dataclass(frozen=True, slots=True)
class StartCheck:
    """What a start of a job would do, found without changing anything. `print` shows it.

    `if pipeline.check(url).is_possible: …`
    """

    job: str
    epoch: int | None
    """The epoch that the start would go on from; None if it would start empty."""
    epoch_micros: int | None = None
    """When that epoch was made."""
    states: tuple[StepState, ...] = ()
    """What happens to each table of each step."""
    problems: tuple[PenstockError, ...] = ()
    """Why the start would be refused: what the start itself would raise."""
    notes: tuple[str, ...] = field(default=())
    """What else to know before the start."""

    @property
    def is_possible(self) -> bool:
        """Whether the job would start."""
        return not self.problems

    def require(self) -> None:
        """Raise the first problem, with the others as notes; return if the start is possible."""
        if self.problems:
            first, *others = self.problems
            for other in others:
                first.add_note(f"Also: {other.message}")
            raise first

    def __str__(self) -> str:
        lines = [f"job {self.job!r} {self._begins()}"]
        rows = [(s.step, s.fate.value, _shown(s)) for s in self.states]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        for step, fate, text in rows:
            lines.append(f"  {step:{widths[0]}}  {fate:{widths[1]}}  {text}")
        lines += (f"note: {note}" for note in self.notes)
        lines += (f"problem: {problem.message}" for problem in self._other_problems)
        lines.append(self._verdict)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        rows = "".join(
            f"<tr><td>{html.escape(s.step)}</td><td>{s.fate.value}</td>"
            f"<td>{html.escape(_shown(s))}</td></tr>"
            for s in self.states
        )
        texts = [*self.notes, *(problem.message for problem in self._other_problems)]
        more = "".join(f"<p>{html.escape(text)}</p>" for text in (*texts, self._verdict))
        return (
            f"<p><b>job {html.escape(repr(self.job))}</b> {html.escape(self._begins())}</p>"
            f"<table><tr><th>step</th><th>state</th><th></th></tr>{rows}</table>{more}"
        )

    def _begins(self) -> str:
        if self.epoch is None and not self.states:
            return "cannot go back to the epoch that restore names"
        if self.epoch is None:
            return "would start empty: there is no checkpoint of it"
        made = "" if self.epoch_micros is None else f" of {shown_time(self.epoch_micros)}"
        return f"would go on from epoch {self.epoch}{made}"

    @property
    def _verdict(self) -> str:
        would = "would start" if self.is_possible else "would be refused"
        return f"The job {would}. Nothing was changed."

    @property
    def _other_problems(self) -> Iterable[PenstockError]:
        """The problems that are not shown with a step already."""
        is_shown = any(state.fate is Fate.REFUSED for state in self.states)
        return self.problems[1:] if is_shown else self.problems


def shown_time(micros: int) -> str:
    """Return an instant as people read it.

    >>> shown_time(1_700_000_000_000_000)
    '2023-11-14 22:13:20 UTC'
    """
    return f"{_EPOCH + timedelta(microseconds=micros):%Y-%m-%d %H:%M:%S} UTC"


def _shown(state: StepState) -> str:
    table = "" if state.table is None else shown_table(state.table)
    advice = f". To start: {state.advice}" if state.advice else ""
    return ": ".join(text for text in (table, state.detail) if text) + advice


def misfit_error(
    manifest: CheckpointManifest, states: Iterable[StepState]
) -> StateError | None:
    """Return the error of a pipeline that cannot go on from a checkpoint; None if it can."""
    refused = [state for state in states if state.fate is Fate.REFUSED]
    if not refused:
        return None
    return StateError(
        f"the pipeline does not fit {manifest.ref}:\n  "
        + "\n  ".join(map(str, refused))
        + "\nNothing was changed",
        code=refused[0].code,
        job=manifest.ref.job,
        epoch=int(manifest.ref.epoch),
    )
