"""Rankings: what is kept and emitted epoch by epoch, ties, equal rows, and what is refused."""

from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.schema import CHANGE_COLUMN, Settling
from penstock.errors import PenstockError, UserError
from penstock.operators.ranking.changelog_top import ChangelogTopConfig
from penstock.operators.ranking.order import to_rank_order
from penstock.operators.ranking.top import TopConfig
from penstock.testing import OperatorHarness

_COLUMNS: dict[str, Any] = {
    "key": pa.string(),
    "price": pa.int64(),
    "tags": pa.list_(pa.string()),
}
STREAM = pen.StreamSchema(pa.schema(_COLUMNS), None, ("key",))
_CHANGES: dict[str, Any] = {
    CHANGE_COLUMN: pa.string(),
    "id": pa.int64(),
    "key": pa.string(),
    "price": pa.int64(),
}
TABLE = pen.StreamSchema(
    pa.schema(_CHANGES), None, ("key",), table_key=("id",), settling=Settling.TOGETHER
)


def a_bid(price: int | None, *tags: str, key: str = "k") -> dict[str, Any]:
    return {"key": key, "price": price, "tags": list(tags)}


class Ranked:
    """The operator, and what it emits in each epoch."""

    def __init__(
        self,
        count: int,
        stream: pen.StreamSchema = STREAM,
        *,
        descending: bool = True,
        rank: str | None = None,
    ) -> None:
        order = to_rank_order("top", stream, "price", descending=descending)
        kind = ChangelogTopConfig if stream.is_changelog else TopConfig
        spec = kind(stream.to_bytes(), count, order, rank).to_operator_spec()
        self.harness = OperatorHarness(spec, stream, amnesia=True)

    def epoch(self, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
        if rows:
            self.harness.push(list(rows))
        names = ["change", "rank", "price"]
        found = self.harness.barrier().rows()
        return [tuple(row[name] for name in names if name in row) for row in found]


def test_a_row_takes_the_place_of_the_one_that_it_drives_out() -> None:
    top = Ranked(2)
    first = top.epoch(a_bid(10), a_bid(30), a_bid(20))
    assert first == [("insert", 30), ("insert", 20)]
    assert top.epoch(a_bid(5)) == []
    assert top.epoch(a_bid(25)) == [("delete", 20), ("insert", 25)]
    assert top.harness.state("rows").num_rows == 2


def test_with_ranks_only_those_that_change_are_emitted() -> None:
    top = Ranked(3, rank="rank")
    assert top.epoch(a_bid(30), a_bid(10)) == [("insert", 1, 30), ("insert", 2, 10)]
    assert top.epoch(a_bid(20)) == [
        *(("update-before", 2, 10), ("update-after", 2, 20)),
        ("insert", 3, 10),
    ]
    assert top.epoch(a_bid(1)) == []


def test_equal_rows_are_counted_and_not_driven_out_by_their_like() -> None:
    top = Ranked(3)
    assert top.epoch(a_bid(7), a_bid(7)) == [("insert", 7), ("insert", 7)]
    assert top.epoch(a_bid(7), a_bid(7)) == [("insert", 7)]
    assert top.epoch(a_bid(7)) == []


def test_with_ranks_a_row_that_moves_behind_its_like_changes_nothing() -> None:
    top = Ranked(3, rank="rank")
    top.epoch(a_bid(7), a_bid(7))
    assert top.epoch(a_bid(9)) == [
        *(("update-before", 1, 7), ("update-after", 1, 9)),
        ("insert", 3, 7),
    ]


def test_ties_are_broken_by_other_columns_whatever_comes_first() -> None:
    found = []
    for rows in ([a_bid(7, "a"), a_bid(7, "b")], [a_bid(7, "b"), a_bid(7, "a")]):
        top = Ranked(1)
        for row in rows:
            top.epoch(row)
        found.append(top.harness.state("rows").to_pylist())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("descending", "kept"), [(True, [3, 2]), (False, [None, 1])], ids=["down", "up"]
)
def test_a_null_is_below_all_values(*, descending: bool, kept: list[Any]) -> None:
    top = Ranked(2, descending=descending)
    found = top.epoch(a_bid(1), a_bid(None), a_bid(3), a_bid(2))
    assert [price for _, price in found] == kept


def change(kind: str, id_: int, price: int, key: str = "k") -> dict[str, Any]:
    return {CHANGE_COLUMN: kind, "id": id_, "key": key, "price": price}


def test_of_a_changelog_a_row_moves_up_when_another_one_is_deleted() -> None:
    top = Ranked(2, TABLE)
    rows = [change("insert", n, price) for n, price in enumerate((10, 30, 20, 5))]
    assert top.epoch(*rows) == [("insert", 30), ("insert", 20)]
    assert top.epoch(change("delete", 1, 30)) == [("delete", 30), ("insert", 10)]
    moved = [change("update-before", 3, 5), change("update-after", 3, 50)]
    assert top.epoch(*moved) == [("delete", 10), ("insert", 50)]
    assert top.harness.state("rows").num_rows == 3


def test_a_row_that_changes_its_key_leaves_one_ranking_for_another() -> None:
    top = Ranked(1, TABLE)
    top.epoch(change("insert", 1, 5), change("insert", 2, 9))
    moved = [change("update-before", 2, 9), change("update-after", 2, 9, key="other")]
    assert sorted(top.epoch(*moved)) == [("delete", 9), ("insert", 5), ("insert", 9)]


def test_a_ranking_goes_on_at_another_parallelism() -> None:
    top = Ranked(2)
    top.epoch(*(a_bid(n, key=f"k{n % 20}") for n in range(40)))
    with OperatorHarness.restore(top.harness.checkpoint(), parallelism=3) as again:
        again.push([a_bid(30, key=f"k{n}") for n in range(20)])
        changes = again.barrier().rows()
    assert sum(row["change"] == "insert" for row in changes) == 20


def a_pipeline(**options: Any) -> pen.Pipeline:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "v": 2, "l": [1]}]))
    given = {"n": 2, "by": "v", "per": "k", **options}
    rows.top("top", **given).write("out", pen.blackhole())
    return pipeline


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"n": 0}, "a whole number from 1 to"),
        ({"n": True}, "a whole number from 1 to"),
        ({"by": "w"}, "there is no column 'w'; known are 'k', 'l', 'v'"),
        ({"by": []}, "name a column, or a list of them"),
        ({"by": "l"}, "whose values have no order"),
        ({"by": ["v", "v"]}, "named twice"),
        ({"by": ["v", "k"], "descending": [True]}, "one of them for each of the 2 columns"),
        ({"per": "z"}, "no column 'z'"),
        ({"rank": "v"}, "is a column of the rows already"),
        ({"rank": 1}, "no name of a column"),
    ],
)
def test_what_cannot_be_ranked_is_refused_when_the_pipeline_is_built(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        a_pipeline(**options).graph()


def test_a_key_is_named_once() -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "v": 2}]))
    rows.key_by("k").top("top", 1, by="v", per="k").write("out", pen.blackhole())
    with pytest.raises(UserError, match="leave per= out"):
        pipeline.graph()


@pytest.mark.parametrize("options", [{"n": 3}, {"descending": False}, {"rank": "r"}])
def test_the_state_of_another_ranking_is_refused(
    tmp_path: Any, options: dict[str, Any]
) -> None:
    a_pipeline().run_in_process(str(tmp_path))
    with pytest.raises(PenstockError, match="top"):
        a_pipeline(**options).run_in_process(str(tmp_path))


def test_the_kind_of_a_change_is_no_column_to_rank_by() -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "v": 1}]))
    rows.from_upserts("t", key="k").top("best", 1, by="change")
    with pytest.raises(UserError, match="no column 'change'; known are 'k', 'v'"):
        pipeline.graph()
