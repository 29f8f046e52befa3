import pyarrow as pa

from penstock.connectors.impulse import CountedSource
from penstock.core.schema import StreamSchema
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState

SECOND = 1_000_000


class InTurn(CountedSource):
    """Deals numbers to splits in turn."""

    def name(self) -> str:
        return "in_turn"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema([]))

    def rows_below(self, number: int, index: int, split_count: int) -> int:
        return len(range(index, number, split_count))

    def make_rows(
        self, index: int, split_count: int, start: int, end: int
    ) -> pa.RecordBatch:
        raise NotImplementedError

    def row_bytes(self) -> int:
        return 1


class Wide(InTurn):
    """Has long rows."""

    def row_bytes(self) -> int:
        return 100


def plan(
    source: CountedSource, known: dict[str, SplitState], *, rows: int = 100, now: int = 0
) -> SourcePlan:
    return source.plan_splits(known, SourceBudget(rows=rows), now)


def test_the_first_epoch_names_all_splits_even_without_rows() -> None:
    first = plan(InTurn(None, 1.0, 2), {}, now=5)

    assert first == SourcePlan(
        (
            SplitPlan("0-of-2", (0, 5), (0, 5), 0),
            SplitPlan("1-of-2", (0, 5), (0, 5), 0),
        ),
        is_complete=True,
    )


def test_splits_share_the_budget() -> None:
    first = plan(InTurn(None, None, 4), {}, rows=10)

    assert [split.end for split in first.splits] == [(2, 0)] * 4
    assert first.has_more


def test_a_budget_smaller_than_the_number_of_splits_still_moves_all() -> None:
    first = plan(InTurn(None, None, 4), {}, rows=1)

    assert [split.end for split in first.splits] == [(1, 0)] * 4


def test_a_budget_of_bytes_counts_rows_by_their_size() -> None:
    planned = Wide(None, None, 1).plan_splits({}, SourceBudget(size_bytes=1_000), 0)

    assert planned.splits[0].end == (10, 0)


def test_the_rate_is_counted_from_the_stored_start() -> None:
    known = {"0-of-1": SplitState(offset=(7, 2 * SECOND))}

    planned = plan(InTurn(None, 10.0, 1), known, now=3 * SECOND)

    assert planned.splits == (SplitPlan("0-of-1", (7, 2 * SECOND), (10, 2 * SECOND), 3),)
    assert not planned.has_more


def test_a_split_with_nothing_due_rests() -> None:
    known = {"0-of-1": SplitState(offset=(10, 0))}

    assert plan(InTurn(None, 10.0, 1), known, now=SECOND).splits == ()


def test_a_clock_that_went_back_takes_no_rows_back() -> None:
    known = {"0-of-1": SplitState(offset=(10, 5 * SECOND))}

    assert plan(InTurn(None, 10.0, 1), known, now=0).splits == ()


def test_splits_that_have_ended_are_left_alone() -> None:
    known = {
        "0-of-2": SplitState(offset=(2, 0), ended=True),
        "1-of-2": SplitState(offset=(0, 0)),
    }

    planned = plan(InTurn(4, None, 2), known)

    assert [split.name for split in planned.splits] == ["1-of-2"]
    assert not planned.has_more


def test_a_state_of_other_splits_keeps_their_number() -> None:
    known = {f"{index}-of-3": SplitState(offset=(0, 0)) for index in range(3)}

    planned = plan(InTurn(9, None, 5), known)

    assert [split.name for split in planned.splits] == ["0-of-3", "1-of-3", "2-of-3"]
