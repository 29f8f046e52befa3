"""Agreement: whether the reports of an epoch belong together. Pure.

The driver publishes only if, from the last level down to the first, every task is named by
one token: the one its consumers hold receipts for, or for a task nobody consumes the only
one that reported. That attempt's report must have arrived and be whole, and it must itself
hold a receipt for every producer it reads. Otherwise the epoch is torn and runs again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.runtime.physical import PhysicalPlan
from penstock.runtime.reports import ErrorPart, Receipt, TaskReport
from penstock.runtime.routing import consumers_of, producers_of

TaskKey: TypeAlias = tuple[int, int]
"""Level and task."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Every task has exactly one attempt that counts."""

    reports: dict[TaskKey, TaskReport]


@dataclass(frozen=True, slots=True)
class Torn:
    """Attempts were mixed, repeated or lost: nothing of this run may count."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Some tasks failed for reasons that travel as values."""

    errors: tuple[ErrorPart, ...]


Agreement: TypeAlias = Agreed | Torn | Failed


def find_agreement(plan: PhysicalPlan, reports: Iterable[TaskReport]) -> Agreement:
    """Decide what a run of an epoch came to."""
    arrived: dict[TaskKey, dict[str, TaskReport]] = {}
    for report in reports:
        attempts = arrived.setdefault((report.level, report.task), {})
        known = attempts.setdefault(report.token, report)
        if known != report:
            return Torn(f"{_name(report.level, report.task)} sent two different reports")
    outcome = _agree(plan, arrived)
    if isinstance(outcome, Agreed):
        return outcome
    everything = [report for attempts in arrived.values() for report in attempts.values()]
    torn = sorted(report.torn for report in everything if report.torn is not None)
    if torn:
        return Torn(torn[0])
    errors = tuple(report.error for report in everything if report.error is not None)
    return Failed(errors) if errors else outcome


def _agree(
    plan: PhysicalPlan, arrived: dict[TaskKey, dict[str, TaskReport]]
) -> Agreed | Torn:
    chosen: dict[TaskKey, TaskReport] = {}
    for level, task in reversed(list(plan.tasks())):
        attempts = arrived.get((level, task), {})
        named = _tokens_named(plan, chosen, level, task)
        if named is None:
            named = set(attempts)
        if len(named) != 1:
            return Torn(f"{_name(level, task)} is known by {len(named)} attempts, not one")
        report = attempts.get(next(iter(named)))
        if report is None:
            return Torn(
                f"the attempt of {_name(level, task)} that was consumed did not report"
            )
        if not report.is_whole:
            return Torn(f"{_name(level, task)} did not finish")
        missing = _expected_producers(plan, level, task) - {
            (receipt.edge, receipt.level, receipt.task) for receipt in report.receipts
        }
        if missing:
            return Torn(f"{_name(level, task)} has no receipt for {len(missing)} producers")
        chosen[level, task] = report
    return Agreed(chosen)


def _tokens_named(
    plan: PhysicalPlan, chosen: dict[TaskKey, TaskReport], level: int, task: int
) -> set[str] | None:
    """Return the tokens that consumers name for a task; None if nobody consumes it."""
    chain, subtask = plan.task(level, task)
    consumers: set[TaskKey] = set()
    for edge in plan.outgoing(chain.number):
        target = plan.chains[edge.target_chain]
        for index in consumers_of(edge.exchange, target.parallelism, subtask.index):
            consumers.add((target.level, target.first_task + index))
    if not consumers:
        return None
    return {
        receipt.token
        for consumer in consumers
        for receipt in chosen[consumer].receipts
        if _is_from(receipt, level, task)
    }


def _expected_producers(
    plan: PhysicalPlan, level: int, task: int
) -> set[tuple[int, int, int]]:
    chain, subtask = plan.task(level, task)
    expected = set()
    for edge in plan.incoming(chain.number):
        source = plan.chains[edge.source_chain]
        for index in producers_of(edge.exchange, source.parallelism, subtask.index):
            expected.add((edge.number, source.level, source.first_task + index))
    return expected


def _is_from(receipt: Receipt, level: int, task: int) -> bool:
    return (receipt.level, receipt.task) == (level, task)


def _name(level: int, task: int) -> str:
    return f"task {task} of level {level}"
