"""Agreement: a run counts only if every task is known by one attempt that did all its work."""

import msgspec
import pytest

from penstock.errors import UserCodeError
from penstock.runtime.driver.outcomes import Agreed, Failed, TaskKey, Torn, find_agreement
from penstock.runtime.plan.executor import Receipt, TaskReport, to_error_part
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph, peers_of
from tests.builders.graphs import a_graph

PLAN = compile_graph(
    a_graph(
        "read -k> count",
        "count -> keep",
        "count -r> write",
        "read -b> write",
        parallelism={"read": 2, "count": 3, "keep": 3, "write": 2},
    )
)


def token_of(key: TaskKey) -> str:
    return f"{key[0]}-{key[1]}"


def a_whole_report(plan: PhysicalPlan, key: TaskKey) -> TaskReport:
    """Return the report of a task with a receipt for everyone it reads."""
    chain, subtask = plan.task(*key)
    receipts = []
    for edge in plan.incoming(chain.number):
        source = plan.chains[edge.source_chain]
        for index in peers_of(edge.exchange, source.parallelism, subtask.index):
            sender = (source.level, source.first_task + index)
            receipts.append(Receipt(edge.number, *sender, token_of(sender)))
    return TaskReport(*key, token_of(key), tuple(receipts))


def whole_run() -> dict[TaskKey, TaskReport]:
    return {key: a_whole_report(PLAN, key) for key in PLAN.tasks()}


def changed(report: TaskReport, **changes: object) -> TaskReport:
    return msgspec.structs.replace(report, **changes)


def again(report: TaskReport, attempt: str) -> TaskReport:
    """Return the report of another attempt that did the same."""
    return msgspec.structs.replace(report, token=attempt)


def agree(reports: dict[TaskKey, TaskReport], *more: TaskReport) -> object:
    return find_agreement(PLAN, [*reports.values(), *more])


STRAY, SECOND = "stray", "second"
LAST = len(PLAN.supersteps) - 1


def test_a_whole_run_is_agreed_on() -> None:
    reports = whole_run()
    assert agree(reports) == Agreed(reports)


def test_the_same_report_may_arrive_twice() -> None:
    reports = whole_run()
    assert agree(reports, *reports.values()) == Agreed(reports)


def test_an_attempt_that_nobody_consumed_is_left_out() -> None:
    reports = whole_run()
    stray = again(reports[0, 0], STRAY)
    assert agree(reports, stray) == Agreed(reports)


@pytest.mark.parametrize("key", list(PLAN.tasks()))
def test_a_lost_report_tears_the_run(key: TaskKey) -> None:
    reports = whole_run()
    del reports[key]
    assert isinstance(agree(reports), Torn)


@pytest.mark.parametrize("key", list(PLAN.tasks()))
def test_a_task_known_by_two_attempts_tears_the_run(key: TaskKey) -> None:
    reports = whole_run()
    consumers = [
        (level, task)
        for (level, task), report in reports.items()
        for receipt in report.receipts
        if (receipt.level, receipt.task) == key
    ]
    second = again(reports[key], SECOND)
    if not consumers:
        assert isinstance(agree(reports, second), Torn)
        return
    first = consumers[0]
    mixed = tuple(
        changed_receipt(receipt) if (receipt.level, receipt.task) == key else receipt
        for receipt in reports[first].receipts
    )
    reports[first] = changed(reports[first], receipts=mixed)
    assert isinstance(agree(reports, second), Torn)


def changed_receipt(receipt: Receipt) -> Receipt:
    return Receipt(receipt.edge, receipt.level, receipt.task, SECOND)


@pytest.mark.parametrize("key", [key for key in PLAN.tasks() if key[0] > 0])
def test_a_missing_receipt_tears_the_run(key: TaskKey) -> None:
    for position in range(len(whole_run()[key].receipts)):
        reports = whole_run()
        receipts = list(reports[key].receipts)
        receipts.pop(position)
        reports[key] = changed(reports[key], receipts=tuple(receipts))
        assert isinstance(agree(reports), Torn)


def test_a_receipt_for_a_task_that_is_not_read_names_no_attempt_of_it() -> None:
    reports = whole_run()
    alone, other = (LAST, 0), (LAST, 1)
    foreign = Receipt(0, *alone, token_of(alone))
    reports[other] = changed(reports[other], receipts=(*reports[other].receipts, foreign))
    second = again(reports[alone], SECOND)
    assert agree(reports, second) == Torn(
        "task 0 of level 2 is known by 2 attempts, not one"
    )


def test_two_different_reports_of_one_attempt_tear_the_run() -> None:
    reports = whole_run()
    other = changed(reports[0, 0], is_skipped=True)
    outcome = agree(reports, other)
    assert outcome == Torn("task 0 of level 0 sent two different reports")


def test_an_error_fails_the_run_and_all_errors_are_told() -> None:
    reports = whole_run()
    errors = [to_error_part(UserCodeError(f"error {i}")) for i in range(2)]
    for task, error in enumerate(errors):
        reports[0, task] = changed(reports[0, task], error=error)
    for key in reports:
        if key[0] > 0:
            reports[key] = changed(reports[key], is_skipped=True, receipts=())
    assert agree(reports) == Failed(tuple(errors))


def test_a_torn_input_outweighs_an_error_that_may_come_from_it() -> None:
    reports = whole_run()
    error = to_error_part(UserCodeError("a row came twice"))
    reports[LAST, 0] = changed(reports[LAST, 0], error=error)
    reports[LAST, 1] = changed(reports[LAST, 1], torn="a record is missing")
    assert agree(reports) == Torn("a record is missing")


def test_an_error_of_an_attempt_that_nobody_consumed_does_not_matter() -> None:
    reports = whole_run()
    error = to_error_part(UserCodeError("a flaky worker"))
    assert agree(reports, again(changed(reports[0, 0], error=error), STRAY)) == Agreed(
        reports
    )
