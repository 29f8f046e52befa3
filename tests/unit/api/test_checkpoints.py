"""`pen.checkpoints`: looking at a job's epochs, and changing what is kept, beside its driver."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.epoch_list import EpochList
from penstock.core.ids import JobId, SavepointName
from penstock.errors import CorruptStateError, ErrorCode, StateError, UserError
from penstock.operators import (
    ArrowOperator,
    MigratableState,
    global_table,
    time_keyed_table,
)
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.records import PinKind
from penstock.state.protocol.retention import Epochs, pin_epoch
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    CUT,
    LocalJob,
    ScriptedSource,
    assert_nothing_was_changed,
    stored_objects,
)
from tests.builders.small_driver import a_driver

DAYS = [
    [{"user": "ada", "paid": 7}, {"user": "bob", "paid": 5}],
    [{"user": "ada", "paid": 1}],
    [{"user": "zoë", "paid": 9}],
]


def shop(*, name: str = "shop", days: int = 3) -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    script = [step for day in DAYS[:days] for step in (day, CUT)]
    sales = pipeline.read("sales", ScriptedSource(script))
    spent = sales.key_by("user").aggregate("spent", total=pen.sum("paid"))
    spent.write("out", pen.blackhole())
    return pipeline


def a_shop(**options: Any) -> tuple[MemoryStore, pen.Checkpoints]:
    store = MemoryStore()
    shop(**options).run_in_process(store)
    return store, pen.checkpoints(store, "shop")


def numbers(epochs: EpochList) -> list[int]:
    return [epoch.epoch for epoch in epochs]


def totals(table: pa.Table) -> dict[str, int]:
    return {row["user"]: row["total"] for row in partials(table)}


def partials(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows of the aggregate's state, whose column of sums may have a longer name."""
    name = next(each for each in table.column_names if each.startswith("total"))
    return [
        {"user": row["user"], "total": row[name]}
        for row in table.select(["user", name]).to_pylist()
    ]


def test_epochs_are_listed_newest_first_with_time_size_and_contents() -> None:
    _, job = a_shop()
    newest, *_, oldest = job.list()
    assert numbers(job.list()) == sorted(numbers(job.list()), reverse=True)
    assert oldest.epoch == 1
    assert newest.made_at >= oldest.made_at
    assert newest.made_at.utcoffset() == timedelta(0)
    assert newest.is_committed
    assert not newest.is_abandoned
    assert newest.steps == ("sales", "spent")
    [table] = [each for each in newest.tables if each.step == "spent"]
    assert table.kind == "keyed_table"
    assert table.file_count >= 1
    assert newest.size_bytes >= newest.new_bytes
    assert oldest.new_bytes == oldest.size_bytes > 0


def test_the_list_is_a_table_in_print_and_in_notebooks() -> None:
    _, job = a_shop()
    job.pin("before-upgrade", 1)
    lines = repr(job.list()).splitlines()
    assert lines[0].split() == [
        "epoch",
        "made",
        "at",
        "size",
        "new",
        "state",
        "steps",
        "kept",
        "by",
    ]
    assert lines[-1].startswith("1 ")
    assert "ready" in lines[-1]
    assert "sales, spent" in lines[-1]
    assert lines[-1].endswith("before-upgrade")
    shown = job.list()._repr_html_()
    assert "<th>kept by</th>" in shown
    assert "<td>before-upgrade</td>" in shown
    assert repr(job) == "<checkpoints of job 'shop' in memory:>"


def test_looking_changes_and_claims_nothing() -> None:
    store, job = a_shop()
    job.pin("before-upgrade", 1)
    before = stored_objects(store)
    _ = repr(job), repr(job.list()), job.savepoints(), job.read("spent", "partials")
    assert_nothing_was_changed(before, store)


def test_a_job_that_does_not_exist_is_told_by_every_method_and_nothing_is_made(
    tmp_path: Path,
) -> None:
    job = pen.checkpoints(tmp_path / "typo", "shop")
    for call in (
        job.list,
        job.savepoints,
        job.collect,
        lambda: job.pin("a"),
        lambda: job.pin("a", 1),
        lambda: job.unpin("a"),
        lambda: job.branch("b"),
        lambda: job.read("spent", "partials"),
    ):
        with pytest.raises(StateError, match=r"there is no job .shop. in file://.*typo"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_savepoint_keeps_an_epoch_until_it_is_unpinned() -> None:
    _, job = a_shop()
    made = job.pin("before-upgrade", 1)
    assert str(made) == "before-upgrade (epoch 1, savepoint)"
    newest = numbers(job.list())[0]
    assert 1 not in job.collect(1).epochs
    assert numbers(job.list()) == [newest, 1]
    assert job.savepoints() == (made,)
    job.unpin("before-upgrade")
    assert job.collect(1).epochs == (1,)
    assert numbers(job.list()) == [newest]


def test_the_newest_epoch_is_pinned_unless_another_is_named() -> None:
    _, job = a_shop()
    assert job.pin("now").epoch == job.list()[0].epoch
    assert job.pin("then", "now").epoch == job.list()[0].epoch


def test_names_and_epochs_that_do_not_exist_are_told_with_those_that_do() -> None:
    _, job = a_shop()
    job.pin("before-upgrade", 1)
    with pytest.raises(StateError, match=r"epoch 99 of shop does not exist"):
        job.pin("a", 99)
    with pytest.raises(StateError, match=r"no savepoint 'typo'; it has: before-upgrade"):
        job.pin("a", "typo")
    with pytest.raises(StateError, match="did you mean 'before-upgrade'"):
        job.unpin("before-upgade")
    with pytest.raises(StateError, match="already has a savepoint 'before-upgrade'"):
        job.pin("before-upgrade")
    with pytest.raises(UserError):
        job.pin("not/a/name")
    with pytest.raises(UserError):
        job.pin("a", -1)
    with pytest.raises(StateError, match=r"no savepoint 'x'; known are 'before-upgrade'$"):
        job.unpin("x")


def test_a_branch_goes_on_from_an_epoch_beside_its_origin() -> None:
    store, job = a_shop()
    branch = job.branch("what-if", 1)
    assert [(s.name, s.kind, s.holder) for s in job.savepoints()] == [
        ("branch-what-if", "branch", "what-if")
    ]
    shop(name="what-if").run_in_process(store)
    assert totals(branch.read("spent", "partials")) == {"ada": 8, "bob": 5, "zoë": 9}
    assert numbers(job.list())[-1] == 1
    with pytest.raises(StateError) as raised:
        job.branch("what-if")
    assert raised.value.code is ErrorCode.JOB_EXISTS


def test_what_a_branch_needs_is_unpinned_only_by_force() -> None:
    _, job = a_shop()
    job.branch("what-if", 1)
    with pytest.raises(StateError, match="for the branch 'what-if', which could not go on"):
        job.unpin("branch-what-if")
    job.unpin("branch-what-if", force=True)
    assert job.savepoints() == ()


def test_what_a_restore_needs_is_unpinned_only_by_force() -> None:
    store, job = a_shop()
    inner = JobCheckpoints(store, job._job.job)
    name = SavepointName("restore-x")
    pinned = pin_epoch(inner._actor(), name, PinKind.RESTORE, Epochs())
    run_steps(store, pinned)
    with pytest.raises(StateError, match="for a restore under way"):
        job.unpin("restore-x")
    job.unpin("restore-x", force=True)


def test_a_restore_by_hand_goes_back_though_it_was_done_before() -> None:
    store, job = a_shop()
    shop().run_in_process(store, restore=1)
    made = job.restore(1)
    assert made.epoch == 1
    assert str(made).startswith("the next start goes on from epoch 1; abandoned epochs: ")
    before = job.list()
    assert shop().check(store).epoch == 1
    shop().run_in_process(store, restore=1)
    assert len(job.list()) > len(before)
    assert {e.epoch for e in job.list() if e.is_abandoned} >= set(made.abandoned)
    assert totals(job.read("spent", "partials")) == {"ada": 8, "bob": 5, "zoë": 9}


def test_a_job_without_an_epoch_of_its_own_has_an_empty_list() -> None:
    _, job = a_shop()
    branch = job.branch("tried")
    assert numbers(branch.list()) == []
    assert "tried" in str(branch.list())
    claimed = JobCheckpoints(MemoryStore(), JobId("claimed"))
    claimed.take_over()
    assert numbers(pen.checkpoints(claimed.store, "claimed").list()) == []


@pytest.mark.parametrize("between", [False, True])
def test_a_restore_by_hand_counts_though_the_program_names_one_that_it_has_done(
    between: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, job = a_shop()
    shop().run_in_process(store, restore=1)
    by_hand = job.list()[1].epoch
    job.restore(by_hand)
    if between:
        shop().run_in_process(store)
    newest = job.list()[0].epoch
    check = shop().check(store, restore=1)
    assert check.epoch == (newest if between else by_hand)
    assert f"and goes on from epoch {check.epoch}" in str(check)
    shop().run_in_process(store, restore=1)
    canonical = {each.epoch for each in job.list() if not each.is_abandoned}
    assert by_hand in canonical
    assert totals(job.read("spent", "partials")) == {"ada": 8, "bob": 5, "zoë": 9}


def test_a_restore_by_hand_does_not_stop_a_driver_that_may_run_unless_forced() -> None:
    store, job = a_shop()
    inner = JobCheckpoints(store, JobId("shop"))
    inner.take_over()
    before = stored_objects(store)
    with pytest.raises(StateError, match="stop it first, or pass force=True"):
        job.restore(1)
    assert_nothing_was_changed(before, store)
    assert job.restore(1, force=True).epoch == 1
    with pytest.raises(StateError, match="epoch 99 of shop does not exist"):
        job.restore(99)


def test_a_collection_tells_what_it_gave_up_and_takes_any_rule_of_retention() -> None:
    _, job = a_shop()
    before = numbers(job.list())
    assert job.collect("7d").epochs == ()
    assert job.collect().epochs == ()
    done = job.collect(pen.retention(2))
    assert done.epochs == tuple(sorted(before[2:]))
    assert str(done).startswith("epochs given up: 1")
    assert done.deleted_objects > 0
    with pytest.raises(UserError):
        job.collect(0)


def test_an_epoch_that_is_not_committed_yet_is_neither_pinned_nor_kept_alone() -> None:
    driver = a_driver(MemoryStore(), epochs=4)
    driver.publish(driver.write_epoch())
    job = pen.Checkpoints(driver.checkpoints)
    assert job.pin("newest").epoch == 4
    job.unpin("newest")
    assert job.collect(1).epochs == (1, 2, 3)
    assert [each.record.ref.epoch for each in driver.checkpoints.epochs()] == [5, 4]


def test_the_state_is_read_as_of_any_epoch_each_key_once() -> None:
    _, job = a_shop()
    assert totals(job.read("spent", "partials")) == {"ada": 8, "bob": 5, "zoë": 9}
    assert totals(job.read("spent", "partials", 1)) == {"ada": 7, "bob": 5}
    job.pin("first", 1)
    assert totals(job.read("spent", "partials", "first")) == {"ada": 7, "bob": 5}


def test_a_table_that_does_not_exist_is_told_with_those_that_do() -> None:
    _, job = a_shop()
    with pytest.raises(
        StateError, match=r"no table 'typo' of step 'spent'; it has: .*spent\."
    ):
        job.read("spent", "typo")
    with pytest.raises(StateError, match="of step 'typo'"):
        job.read("typo", "partials")


class Offset(msgspec.Struct):
    at: int


class Offsets(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 1
    PreviousVersion: ClassVar[type] = Offset
    at: int

    @classmethod
    def migrate(cls, previous: Offset) -> "Offsets":
        return cls(previous.at + 100)


class Keeping(ArrowOperator):
    """Keeps values of its own, and rows by time."""

    def __init__(self, value: Any = Offset) -> None:
        self.value = value

    def name(self) -> str:
        return "keeping"

    def tables(self) -> Any:
        columns: list[tuple[str, pa.DataType]] = [
            ("user", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
        ]
        schema = pa.schema(columns)
        return [
            global_table("offsets", str, self.value),
            global_table("mixed", str, Any),
            time_keyed_table("recent", schema, time_column="at", key_columns=["user"]),
        ]

    def process_batch(self, batch: Any, ctx: Any, collector: Any) -> None:
        ctx.get_global_keyed_state("offsets").insert("x", self.value(batch.num_rows))
        for key, value in (("a", 1), ("b", "two")):
            ctx.get_global_keyed_state("mixed").insert(key, value)
        collector.collect(batch)


def keeping(value: Any = Offset) -> pen.Pipeline:
    pipeline = pen.Pipeline("keeping")
    rows = pipeline.read("rows", ScriptedSource([DAYS[0], CUT, DAYS[1], CUT]))
    rows.process("keep", Keeping(value)).write("out", pen.blackhole())
    return pipeline


def test_tables_of_every_kind_can_be_read() -> None:
    store = MemoryStore()
    keeping().run_in_process(store)
    job = pen.checkpoints(store, "keeping")
    offsets = job.read("keep", "offsets").to_pylist()
    assert offsets == [{"key": "x", "value": {"at": 1}}]
    mixed = job.read("keep", "mixed").to_pylist()
    assert mixed == [{"key": "a", "value": "1"}, {"key": "b", "value": '"two"'}]
    assert job.read("keep", "recent").num_rows == 0


def test_state_with_versions_is_read_with_its_declaration() -> None:
    store = MemoryStore()
    keeping().run_in_process(store)
    job = pen.checkpoints(store, "keeping")
    spec = global_table("offsets", str, Offsets)
    migrated = job.read("keep", "offsets", spec=spec).to_pylist()
    assert migrated == [{"key": "x", "value": {"at": 101}}]
    keeping(Offsets).run_in_process(store, restore=1)
    with pytest.raises(StateError, match="pass its declaration as spec="):
        job.read("keep", "offsets")


def test_everything_is_safe_while_the_job_runs() -> None:
    """Looks, pins, branches and collects in a thread beside a driver, as fast as it can."""
    store, failures = MemoryStore(), []
    script = [step for n in range(60) for step in ([{"user": f"u{n % 5}", "paid": n}], CUT)]
    pipeline = pen.Pipeline("shop")
    sales = pipeline.read("sales", ScriptedSource(script))
    spent = sales.key_by("user").aggregate("spent", total=pen.sum("paid"))
    spent.write("out", pen.blackhole())
    local = LocalJob(pipeline, store=store)
    done, started = threading.Event(), threading.Event()

    def disturb() -> None:
        job, turn = pen.checkpoints(store, "shop"), 0
        try:
            while not done.is_set():
                turn += 1
                if JobCheckpoints(store, local.graph.job).newest() is None:
                    continue
                job.list()
                job.read("spent", "partials")
                job.pin(f"turn-{turn}")
                job.collect(1)
                job.unpin(f"turn-{turn}")
                started.set()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=disturb)
    thread.start()
    status = local.run()
    done.set()
    thread.join()
    assert failures == []
    assert started.is_set()
    assert status.phase is pen.JobPhase.FINISHED
    assert status.restarts == 0
    expected = {f"u{k}": sum(n for n in range(60) if n % 5 == k) for k in range(5)}
    assert totals(pen.checkpoints(store, "shop").read("spent", "partials")) == expected


def test_damage_is_told_with_the_object() -> None:
    store, job = a_shop()
    path = next(path for path in store.contents() if path.endswith("manifest.pb"))
    store.put(path, b"damaged")
    with pytest.raises(CorruptStateError, match=r"manifest\.pb"):
        job.list()
