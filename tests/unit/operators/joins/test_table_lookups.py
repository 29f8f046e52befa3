"""Lookup joins with tables: what is found, when they are loaded again, what if they cannot be."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import ErrorCode, ExternalError, PenstockError, UserError
from penstock.operators.joins.lookup_cache import TABLES, LookupCache
from penstock.operators.joins.lookup_rows import LookupRows
from penstock.testing import OperatorHarness
from tests.unit.state.files.file_builders import a_schema

VISIT = a_schema(country=pa.string(), n=pa.int64())


@pytest.fixture(autouse=True)
def no_tables() -> Iterator[None]:
    TABLES.clear()
    yield
    TABLES.clear()


def harness_of(lookup: Any, *, parallelism: int = 1, **options: Any) -> OperatorHarness:
    p = pen.Pipeline("p")
    visits = p.read("visits", pen.list_source([], VISIT))
    options = {"on": "country", "how": "left", **options}
    visits.join("named", lookup, **options).write("out", pen.blackhole())
    node = next(n for n in p.graph().nodes if n.operator == "named")
    return OperatorHarness(node.spec, *node.inputs, parallelism=parallelism)


def visit(harness: OperatorHarness, *countries: str | None) -> list[Any]:
    """Return what an epoch with these visits gives: country, name."""
    harness.push([{"country": c, "n": i} for i, c in enumerate(countries)])
    harness.barrier()
    found = [(row["country"], row.get("name")) for row in harness.take()]
    return sorted(found, key=str)


def put(folder: Path, name: str = "a.parquet", **names: str) -> None:
    folder.mkdir(exist_ok=True)
    frame = pl.DataFrame({"country": list(names), "name": list(names.values())})
    frame.write_parquet(folder / name)


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"country": ["ch", "fr"], "name": ["S", "F"]}),
        pl.DataFrame({"country": ["ch", "fr"], "name": ["S", "F"]}).to_arrow(),
        pl.DataFrame({"country": ["ch", "fr"], "name": ["S", "F"]}).to_pandas(),
        [{"country": "ch", "name": "S"}, {"country": "fr", "name": "F"}],
        {"country": ["ch", "fr"], "name": ["S", "F"]},
    ],
    ids=["polars", "arrow", "pandas", "list", "columns"],
)
def test_rows_of_frames_of_all_kinds_are_looked_up(frame: Any) -> None:
    with harness_of(pen.lookup_frame(frame)) as harness:
        assert visit(harness, "ch", "xx", None) == [("ch", "S"), ("xx", None), (None, None)]


def test_inner_lookups_drop_rows_without_a_match_and_fan_out() -> None:
    rows = [{"country": "ch", "name": "S"}, {"country": "ch", "name": "CH"}]
    with harness_of(pen.lookup_frame(rows), how="inner") as harness:
        assert visit(harness, "ch", "xx", None) == [("ch", "CH"), ("ch", "S")]


def test_a_condition_decides_which_pairs_are_matches() -> None:
    rows = [{"country": "ch", "name": "S"}, {"country": "fr", "name": "F"}]
    where = pl.col("name") != "F"
    with harness_of(pen.lookup_frame(rows), where=where) as harness:
        assert visit(harness, "ch", "fr") == [("ch", "S"), ("fr", None)]


def test_the_event_time_of_rows_stays_and_names_that_clash_get_a_suffix() -> None:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.nexmark(10, kind="bids"))
    right = pen.lookup_frame([{"id": 1, "price": 2}])
    joined = rows.join("x", right, left_on="auction", right_on="id")
    assert joined.schema.time_column == rows.schema.time_column
    assert "price_right" in joined.schema.arrow.names


def test_files_are_read_again_when_the_drivers_clock_is_in_another_interval(
    tmp_path: Path,
) -> None:
    put(tmp_path / "c", ch="S")
    lookup = pen.lookup_files(tmp_path / "c" / "*.parquet", reload="10m")
    with harness_of(lookup, parallelism=2) as harness:
        assert visit(harness, "ch", "fr") == [("ch", "S"), ("fr", None)]
        put(tmp_path / "c", "b.parquet", fr="F")
        harness.advance("9m")
        assert visit(harness, "ch", "fr") == [("ch", "S"), ("fr", None)]
        harness.advance("1m")
        assert visit(harness, "ch", "fr") == [("ch", "S"), ("fr", "F")]
        harness.forget()
        assert visit(harness, "fr") == [("fr", "F")]


def test_files_are_read_once_without_reload(tmp_path: Path) -> None:
    put(tmp_path / "c", ch="S")
    with harness_of(pen.lookup_files(f"{tmp_path}/c/*.parquet")) as harness:
        assert visit(harness, "ch") == [("ch", "S")]
        put(tmp_path / "c", ch="other")
        harness.advance("100d")
        harness.forget()
        assert visit(harness, "ch") == [("ch", "S")]


def test_a_table_that_cannot_be_loaded_again_is_used_for_three_intervals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "c", ch="S")
    with harness_of(pen.lookup_files(f"{tmp_path}/c/*.parquet", reload="1m")) as harness:
        assert visit(harness, "ch") == [("ch", "S")]
        (tmp_path / "c" / "a.parquet").unlink()
        for interval in (1, 2, 3):
            harness.advance("1m")
            with caplog.at_level(logging.WARNING):
                assert visit(harness, "ch") == [("ch", "S")]
            assert f"loaded {interval} reload intervals ago" in caplog.text
        harness.advance("1m")
        with pytest.raises(UserError, match=r"lookup 'operator' .* names no file"):
            visit(harness, "ch")


def test_a_table_that_comes_back_is_loaded_again(tmp_path: Path) -> None:
    put(tmp_path / "c", ch="S")
    with harness_of(pen.lookup_files(f"{tmp_path}/c/*.parquet", reload="1m")) as harness:
        assert visit(harness, "ch") == [("ch", "S")]
        (tmp_path / "c" / "a.parquet").write_bytes(b"half a file")
        harness.advance("1m")
        assert visit(harness, "ch") == [("ch", "S")]
        put(tmp_path / "c", ch="new")
        harness.advance("1m")
        assert visit(harness, "ch") == [("ch", "new")]


def test_a_table_that_was_never_loaded_fails_the_job_by_its_name(tmp_path: Path) -> None:
    lookup = pen.lookup_files(
        f"{tmp_path}/c/*.parquet", schema={"country": str, "name": str}
    )
    with (
        harness_of(lookup) as harness,
        pytest.raises(
            UserError, match=r"lookup 'operator' .*/c/\*.parquet.* cannot be loaded"
        ),
    ):
        visit(harness, "ch")


def test_files_with_other_columns_than_at_first_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "c", ch="S")
    lookup = pen.lookup_files(f"{tmp_path}/c/*.parquet")
    with harness_of(lookup) as harness:
        pl.DataFrame({"country": ["ch"], "named": [1]}).write_parquet(
            tmp_path / "c" / "b.parquet"
        )
        with pytest.raises(UserError, match="'named'"):
            visit(harness, "ch")


_CALLS: list[int] = []


def _rates() -> pl.DataFrame:
    _CALLS.append(1)
    return pl.DataFrame({"country": ["ch"], "name": [f"v{len(_CALLS)}"]})


def test_a_function_is_called_again_for_each_interval_and_once_for_all_subtasks() -> None:
    _CALLS.clear()
    with harness_of(pen.lookup_frame(_rates, reload="1m"), parallelism=2) as harness:
        assert visit(harness, "ch", "ch", "ch") == [("ch", "v2")] * 3
        assert visit(harness, "ch") == [("ch", "v2")]
        harness.advance("1m")
        assert visit(harness, "ch", "ch") == [("ch", "v3")] * 2


def test_a_function_that_raises_fails_the_job_by_its_name() -> None:
    def broken() -> Any:
        raise RuntimeError("no database")

    lookup = pen.lookup_frame(broken, schema={"country": str})
    with (
        harness_of(lookup) as harness,
        pytest.raises(
            PenstockError, match=r"lookup 'operator' .*RuntimeError: no database"
        ),
    ):
        visit(harness, "ch")


def test_a_function_that_returns_other_columns_fails_the_job() -> None:
    def other() -> Any:
        return pl.DataFrame({"land": ["ch"]})

    lookup = pen.lookup_frame(other, schema={"country": str})
    with (
        harness_of(lookup) as harness,
        pytest.raises(UserError, match="column 'country' is missing"),
    ):
        visit(harness, "ch")


def test_a_function_of_spark_frames_whose_columns_are_given_names_the_way_out() -> None:
    class Frame:
        def toArrow(self) -> pa.Table:  # noqa: N802 (as Spark calls it)
            return pa.table({"country": ["ch"]})

    def rates() -> Any:
        return Frame()

    lookup = pen.lookup_frame(rates, schema={"country": str}, reload="1m")
    with harness_of(lookup) as harness, pytest.raises(UserError, match="leave schema= of"):
        visit(harness, "ch")


def empty() -> LookupRows:
    return LookupRows(pa.RecordBatch.from_pydict({"k": [1]}), ["k"])


def test_a_process_keeps_only_so_many_tables() -> None:
    cache = LookupCache(most=2)
    for number in range(5):
        cache.get(number, 0, empty, "x")
    assert len(cache) == 2
    kept = cache.get(4, 0, empty, "x")
    assert cache.get(4, 0, empty, "x") is kept
    assert cache.get(4, 1, empty, "x") is not kept


def test_a_process_keeps_only_tables_of_so_many_bytes_but_always_the_last() -> None:
    size = empty().size_bytes
    cache = LookupCache(most_bytes=2 * size)
    for number in range(5):
        cache.get(number, 0, empty, "x")
    assert len(cache) == 2
    cache = LookupCache(most_bytes=size - 1)
    kept = cache.get(0, 0, empty, "x")
    assert cache.get(0, 0, empty, "x") is kept


def test_an_older_version_is_not_answered_by_a_newer_one_that_failed() -> None:
    def fail() -> LookupRows:
        raise ExternalError("gone", code=ErrorCode.EXTERNAL_FAILED)

    cache = LookupCache()
    cache.get("s", 7, empty, "x")
    with pytest.raises(ExternalError):
        cache.get("s", 6, fail, "x")
