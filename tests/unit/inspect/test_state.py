"""State is read at any kept epoch, as data of any kind, without disturbing anybody."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import StateError, UserError
from penstock.inspect.state import OpenState, open_state
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.storage.urls import to_store
from penstock.testing import LocalJob, list_source

ROWS = [{"user": f"u{number % 3}", "paid": number} for number in range(40)]
SETTINGS = DriverSettings(budget=SourceBudget(rows=5), adapts_budget=False, keep_epochs=100)


def shop() -> pen.Pipeline:
    pipeline = pen.Pipeline("shop")
    sales = pipeline.read("sales", list_source(ROWS))
    sales.key_by("user").aggregate("spent", total=pen.sum("paid")).write(
        "out", pen.blackhole()
    )
    return pipeline


@pytest.fixture
def url(tmp_path: Path) -> str:
    LocalJob(shop(), store=to_store(str(tmp_path)), settings=SETTINGS).run(epochs=6)
    return str(tmp_path)


def totals(state: OpenState) -> dict[str, int]:
    rows = state.table("spent").arrow().to_pylist()
    return {row["user"]: row["total.sum"] for row in rows}


def expected(count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in ROWS[:count]:
        found[str(row["user"])] = found.get(str(row["user"]), 0) + int(str(row["paid"]))
    return found


@pytest.mark.parametrize("epoch", [1, 2, 5])
def test_each_epoch_has_the_rows_of_its_time(url: str, epoch: int) -> None:
    with open_state(url, "shop", epoch) as state:
        assert (state.job, state.epoch) == ("shop", epoch)
        assert totals(state) == expected(5 * epoch)


def test_the_newest_epoch_and_a_savepoint_are_found(url: str) -> None:
    pen.checkpoints(url, "shop").pin("early", 2)
    with open_state(url, "shop", "early") as early, open_state(url, "shop") as newest:
        assert totals(early) == expected(10)
        assert newest.epoch > 5
        assert newest.made_at >= early.made_at


def test_rows_are_the_same_in_every_form(url: str) -> None:
    with open_state(url, "shop", 3) as state:
        spent = state.table("spent", "partials")
        arrow = spent.arrow().sort_by("user")
        assert spent.polars().sort("user").collect().to_dicts() == arrow.to_pylist()
        assert spent.pandas().sort_values("user").to_dict("records") == arrow.to_pylist()
        relation = spent.duckdb().order("user")
        assert relation.to_arrow_table().to_pylist() == arrow.to_pylist()


def test_a_lazy_frame_is_filtered_and_cut(url: str) -> None:
    with open_state(url, "shop", 3) as state:
        lazy = state.table("spent").polars()
        found = lazy.filter(pl.col("user") == "u1").select("user").collect()
        assert found.to_dicts() == [{"user": "u1"}]
        assert lazy.head(2).collect().height == 2


def test_keys_are_looked_up_and_missing_ones_left_out(url: str) -> None:
    with open_state(url, "shop", 3) as state:
        spent = state.table("spent")
        found = spent.get(["u2", "nobody", "u0"]).to_pylist()
        assert [row["user"] for row in found] == ["u2", "u0"]
        assert [field.name for field in spent.key_fields] == ["user"]


def test_tables_by_key_and_value_are_decoded(url: str) -> None:
    with open_state(url, "shop", 3) as state:
        splits = state.table("sales")
        assert splits.kind == "global_table"
        assert splits.arrow().num_rows == 1
        with pytest.raises(UserError, match="read it whole"):
            splits.get(["0-of-1"])


@pytest.mark.parametrize(
    ("step", "table", "problem"),
    [
        ("spend", None, "did you mean 'spent'"),
        ("spent", "sums", "no table 'sums': it has partials"),
    ],
)
def test_a_table_that_is_not_there_is_named(
    url: str, step: str, table: str | None, problem: str
) -> None:
    with open_state(url, "shop") as state, pytest.raises(StateError, match=problem):
        state.table(step, table)


def test_a_column_that_is_not_there_is_named(url: str) -> None:
    with (
        open_state(url, "shop") as state,
        pytest.raises(UserError, match="no column 'usr'"),
    ):
        state.table("spent").arrow(columns=["usr"])


def test_a_job_or_epoch_that_does_not_exist_is_an_error(url: str) -> None:
    with pytest.raises(StateError, match="no job 'nobody'"):
        open_state(url, "nobody")
    with pytest.raises(StateError):
        open_state(url, "shop", 999)


def test_what_was_collected_meanwhile_says_to_make_a_savepoint(url: str) -> None:
    with open_state(url, "shop", 1) as state:
        pen.checkpoints(url, "shop").collect(1)
        with pytest.raises(StateError, match="make a savepoint first"):
            state.table("spent")


def test_looking_changes_nothing_and_leaves_nothing(url: str) -> None:
    before = sorted(Path(url).rglob("*"))
    with open_state(url, "shop", 3) as state:
        state.table("spent").arrow()
        folder = Path(state._folder.name)
        assert folder.is_dir()
    assert not folder.exists()
    assert sorted(Path(url).rglob("*")) == before


def test_rows_of_several_subtasks_are_put_together(tmp_path: Path) -> None:
    job = LocalJob(shop(), store=to_store(str(tmp_path)), settings=SETTINGS)
    job.run(epochs=3, parallelism=3)
    job.run(epochs=2, parallelism=2)
    with open_state(str(tmp_path), "shop") as state:
        assert totals(state) == expected(sum(totals_rows(state)))


def totals_rows(state: OpenState) -> list[int]:
    """How many rows the job has read, by split."""
    rows: pa.Table = state.table("sales").arrow()
    return [int(str(row["value"]["offset"])) for row in rows.to_pylist()]
