"""`Pipeline.check` says what a start does to the state, and its advice holds when followed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import penstock as pen
from penstock.errors import PenstockError
from penstock.operators import ArrowOperator, MigratableState, global_table
from penstock.runtime.driver.fitness import Fate
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, ScriptedSource, assert_nothing_was_changed, stored_objects

ROWS = [{"user": "ada", "spent": 7}, {"user": "bob", "spent": 5}]


class Count(msgspec.Struct):
    rows: int


class CountV1(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 1
    PreviousVersion: ClassVar[type] = Count
    rows: int
    users: int = 0

    @classmethod
    def migrate(cls, previous: Count) -> "CountV1":
        return cls(previous.rows)


class Counting(ArrowOperator):
    """Keeps a count in a table of the given name and type."""

    def __init__(self, table: str | None = "counts", value: Any = Count) -> None:
        self.table, self.value = table, value

    def name(self) -> str:
        return "counting"

    def tables(self) -> Any:
        return [] if self.table is None else [global_table(self.table, str, self.value)]

    def process_batch(self, batch: Any, ctx: Any, collector: Any) -> None:
        if self.table is not None:
            ctx.get_global_keyed_state(self.table).insert("all", self.value(1))
        collector.collect(batch)


def a_pipeline(step: str = "counting", **options: Any) -> pen.Pipeline:
    pipeline = pen.Pipeline("shop")
    rows = pipeline.read("rows", ScriptedSource([ROWS, CUT, ROWS, CUT]))
    rows.process(step, Counting(**options)).write("out", pen.blackhole())
    return pipeline


def summing(step: str = "spending", *, key: str = "user") -> pen.Pipeline:
    pipeline = pen.Pipeline("shop")
    rows = pipeline.read("rows", ScriptedSource([ROWS, CUT, ROWS, CUT]))
    rows.key_by(key).aggregate(step, n=pen.count()).write("out", pen.blackhole())
    return pipeline


def a_checkpoint_of(pipeline: pen.Pipeline) -> MemoryStore:
    store = MemoryStore()
    pipeline.run_in_process(store)
    return store


def fates(check: pen.StartCheck) -> dict[tuple[str, str | None], Fate]:
    return {(state.step, state.table): state.fate for state in check.states}


def test_what_is_kept_migrated_and_starts_empty_is_told_by_step_and_table() -> None:
    store = a_checkpoint_of(a_pipeline())
    changed = pen.Pipeline("shop")
    rows = changed.read("rows", ScriptedSource([ROWS, CUT, ROWS, CUT]))
    counted = rows.process("counting", Counting(value=CountV1))
    counted.process("more", Counting()).write("out", pen.blackhole())

    check = changed.check(store)

    assert check.is_possible
    assert check.epoch == 3
    assert fates(check) == {
        ("rows", "penstock.splits"): Fate.KEPT,
        ("counting", "counts"): Fate.MIGRATED,
        ("more", "counts"): Fate.EMPTY,
    }
    shown = str(check)
    assert "job 'shop' would go on from epoch 3 of " in shown
    assert "rows      kept          read positions: 2 files" in shown
    assert "counting  migrated      table 'counts': 1 of 1 files by 0 → 1" in shown
    assert "more      starts empty  table 'counts'\n" in shown
    assert shown.endswith("The job would start. Nothing was changed.")


def test_it_claims_and_changes_nothing() -> None:
    store = a_checkpoint_of(a_pipeline())
    before = stored_objects(store)
    for pipeline in (a_pipeline(), a_pipeline("other"), summing()):
        pipeline.check(store)
        pipeline.check(store, restore=1)
        pipeline.check(store, allow_dropped_state=True)
    assert_nothing_was_changed(before, store)


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    check = a_pipeline().check(str(tmp_path / "typo"))
    assert check.epoch is None
    assert "would start empty: there is no checkpoint of it" in str(check)
    assert list(tmp_path.iterdir()) == []


CHANGES: dict[str, tuple[Callable[[], pen.Pipeline], Callable[..., pen.Pipeline]]] = {
    "the same": (a_pipeline, a_pipeline),
    "a step is gone": (a_pipeline, lambda: a_pipeline("other")),
    "a table is gone": (a_pipeline, lambda: a_pipeline(table=None)),
    "a table has another name": (a_pipeline, lambda: a_pipeline(table="other")),
    "a version is gone": (lambda: a_pipeline(value=CountV1), a_pipeline),
    "a version is new": (a_pipeline, lambda: a_pipeline(value=CountV1)),
    "a key changed": (summing, lambda: summing(key="spent")),
    "a kind changed": (lambda: a_pipeline("spending"), summing),
}


@pytest.mark.parametrize("options", [{}, {"allow_dropped_state": True}, {"restore": 1}])
@pytest.mark.parametrize("change", CHANGES)
def test_it_says_what_the_start_then_does(change: str, options: dict[str, Any]) -> None:
    before, after = CHANGES[change]
    store = a_checkpoint_of(before())
    check = after().check(store, **options)
    if check.is_possible:
        after().run_in_process(store, **options)
        return
    with pytest.raises(PenstockError) as raised:
        after().run_in_process(store, **options)
    assert check.problems[0].message == raised.value.message
    assert check.problems[0].code is raised.value.code
    assert Fate.REFUSED in fates(check).values()


def advice_for(change: str, **options: Any) -> tuple[MemoryStore, str]:
    before, after = CHANGES[change]
    store = a_checkpoint_of(before())
    [refused] = [s for s in after().check(store, **options).states if s.advice]
    assert refused.fate is Fate.REFUSED
    return store, refused.advice


def test_a_step_that_is_gone_may_be_put_back_or_given_up_as_advised() -> None:
    store, advice = advice_for("a step is gone")
    assert advice == (
        "put the step back under this name, pass renamed={'counting': \"…\"} if it has another "
        "name, or pass allow_dropped_state=True to give it up"
    )
    assert a_pipeline("other").check(store, renamed={"counting": "other"}).is_possible
    assert a_pipeline().check(store).is_possible
    given_up = a_pipeline("other").check(store, allow_dropped_state=True)
    assert given_up.is_possible
    assert fates(given_up)["counting", None] is Fate.DROPPED
    a_pipeline("other").run_in_process(store, restore=1, allow_dropped_state=True)


def test_a_table_that_is_gone_may_be_declared_again_or_given_up_as_advised() -> None:
    store, advice = advice_for("a table is gone")
    assert advice == (
        "undo the change, so that the step declares it again; or pass "
        "allow_dropped_state=True to give it up"
    )
    assert a_pipeline().check(store).is_possible
    pipeline = a_pipeline(table=None)
    assert pipeline.check(store, allow_dropped_state=True).is_possible
    pipeline.run_in_process(store, restore=1, allow_dropped_state=True)


def test_a_step_that_cannot_go_on_starts_empty_under_another_name_as_advised() -> None:
    store, advice = advice_for("a key changed", allow_dropped_state=True)
    assert advice == (
        "undo the change; or give the step another name and pass allow_dropped_state=True, "
        "and it starts empty"
    )
    assert summing().check(store).is_possible
    renamed = summing("anew", key="spent")
    check = renamed.check(store, restore=1, allow_dropped_state=True)
    assert check.is_possible
    assert {s.fate for s in check.states if s.step == "anew"} == {Fate.EMPTY}
    renamed.run_in_process(store, restore=1, allow_dropped_state=True)


def test_what_a_source_has_against_the_start_is_told(tmp_path: Path) -> None:
    def reading(folder: str) -> pen.Pipeline:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.jsonl").write_text('{"n": 1}\n')
        pipeline = pen.Pipeline("reading")
        pipeline.read("rows", pen.files(f"{tmp_path}/{folder}/*.jsonl")).write(
            "out", pen.blackhole()
        )
        return pipeline

    store = a_checkpoint_of(reading("mon"))
    check = reading("tue").check(store)
    assert not check.is_possible
    assert "problem: the job has begun to read the files" in str(check)
    assert "the job has begun to read" in check._repr_html_()


def test_a_restore_that_is_not_possible_is_told() -> None:
    store = a_checkpoint_of(a_pipeline())
    check = a_pipeline().check(store, restore=99)
    assert not check.is_possible
    assert "epoch 99 of shop does not exist" in str(check)
    assert "cannot go back to the epoch that restore names" in str(check)
    assert "there is no checkpoint" not in str(check)
    check = a_pipeline().check(store, restore="typo")
    assert "no savepoint 'typo'" in str(check)


def test_a_finished_job_and_a_restore_in_force_are_noted() -> None:
    store = a_checkpoint_of(a_pipeline())
    assert "note: the job has finished" in str(a_pipeline().check(store))
    assert a_pipeline().check(store, restore=1).epoch == 1


def test_a_notebook_shows_it_as_a_table_and_escapes_names() -> None:
    store = a_checkpoint_of(summing())
    shown = summing("a-b").check(store)._repr_html_()
    assert "<table>" in shown
    assert "<td>spending</td><td>refused</td>" in shown
    assert "&#x27;" in shown
    assert "The job would be refused. Nothing was changed." in shown
