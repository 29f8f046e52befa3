"""Steps that turn rows into rows: renamed, dropped, mapped, keyed by anything, in any library."""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.stream import Stream
from penstock.core.clock import new_token
from penstock.errors import PenstockError, SchemaError, UserError
from tests.builders.graphs import schema_of

ROWS: list[dict[str, Any]] = [
    {"user": "ada", "n": 1},
    {"user": "bob", "n": 2},
    {"user": "ada", "n": 3},
]
AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)


def a_stream(rows: Any = ROWS, **options: Any) -> Stream:
    return pen.Pipeline("p").read("rows", pen.list_source(rows), **options)


def run(stream: Stream, *sides: str) -> list[Any]:
    """Run a pipeline; return the rows of the stream, and of side outputs."""
    name = f"row-steps-{new_token()}"
    lists = [pen.list_sink(f"{name}-{side}") for side in ("main", *sides)]
    stream.write("main-out", lists[0])
    for side, out in zip(sides, lists[1:], strict=True):
        stream.side_output(side).write(f"{side}-out", out)
    pipeline = pen.Pipeline("p")
    pipeline.builder = stream.builder
    pipeline.run_in_process("memory:")
    found = [out.rows() for out in lists]
    return found if sides else found[0]


def mistake(build: Callable[[Stream], Any], **options: Any) -> PenstockError:
    stream = a_stream(**options)
    build(stream)
    with pytest.raises(PenstockError) as raised:
        stream.builder.graph()
    return raised.value


def test_columns_are_renamed_with_their_roles_and_in_any_type() -> None:
    rows = pa.table({"at": [AT], "kind": pa.array(["a"]).dictionary_encode()})
    stream = a_stream(rows, event_time="at").rename({"at": "time", "kind": "sort"})
    assert stream.schema.time_column == "time"
    assert stream.schema.arrow.names == ["time", "sort"]
    assert run(stream) == [{"time": AT, "sort": "a"}]


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ({"usr": "who"}, "there is no column 'usr'; did you mean 'user'"),
        ({"user": "n"}, "column 'n' occurs more than once"),
        ("user", "rename takes the new names by the old ones"),
        ({"user": 5}, "rename takes the new names by the old ones"),
    ],
)
def test_a_rename_that_cannot_work_is_refused(names: Any, hint: str) -> None:
    assert hint in str(mistake(lambda stream: stream.rename(names)))


@pytest.mark.parametrize(
    "columns", [("n",), (["n"],), (pl.col("n"),), (cs.numeric(),), (cs.integer(), "n")]
)
def test_columns_are_dropped_by_name_list_column_or_selector(columns: Any) -> None:
    assert a_stream().drop(*columns).schema.arrow.names == ["user"]


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (("usr",), "there is no column 'usr'; did you mean 'user'"),
        (("user", "n"), "drop leaves no column"),
        ((pl.col("n") + 1,), "drop takes names of columns"),
        ((5,), "drop takes names of columns, not 5"),
    ],
)
def test_a_drop_that_cannot_work_is_refused(columns: Any, hint: str) -> None:
    assert hint in str(mistake(lambda stream: stream.drop(*columns)))


def test_a_function_of_one_row_maps_rows() -> None:
    mapped = a_stream().map(
        lambda row: {"who": row["user"].upper(), "n": row["n"] * 2},
        schema={"who": str, "n": int},
    )
    assert run(mapped) == [
        {"who": "ADA", "n": 2},
        {"who": "BOB", "n": 4},
        {"who": "ADA", "n": 6},
    ]


@pytest.mark.parametrize(
    ("result", "hint"),
    [
        (None, "returned a NoneType"),
        ({"user": "x"}, "returned a dictionary of (user)"),
        ({"user": "x", "n": 1, "m": 2}, "of exactly the columns (n, user)"),
        ({"user": "x", "n": "one"}, "column 'n' is no int64"),
    ],
)
def test_a_result_that_is_no_row_of_the_schema_is_refused(result: Any, hint: str) -> None:
    with pytest.raises(PenstockError) as raised:
        run(a_stream().map(lambda _: result))
    assert hint in str(raised.value)


def fails_on_two(rows: pl.DataFrame) -> pl.DataFrame:
    if 2 in rows["n"]:
        raise ValueError("two is too much")
    return rows.with_columns(pl.col("n") * 10)


def row_fails_on_two(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 2:
        raise ValueError("two is too much")
    return {**row, "n": row["n"] * 10}


@pytest.mark.parametrize("kind", ["map_batches", "map"])
def test_rows_on_which_a_function_fails_are_diverted_and_only_those(kind: str) -> None:
    numbers = [{"n": n} for n in (1, 2, 3, 2, 5, 6, 7)]
    function = fails_on_two if kind == "map_batches" else row_fails_on_two
    good, bad = run(getattr(a_stream(numbers), kind)(function, on_bad="divert"), pen.BAD)
    assert [row["n"] for row in good] == [10, 30, 50, 60, 70]
    assert bad == [{"n": 2, "error": "ValueError: two is too much"}] * 2
    with pytest.raises(PenstockError, match="two is too much"):
        run(getattr(a_stream(numbers), kind)(function))


def test_a_row_that_python_cannot_hold_is_diverted_by_map_and_the_others_are_not() -> None:
    times = pa.array([0, 2**62, 1_000_000], pa.timestamp("us"))
    stream = a_stream(pa.table({"n": [1, 2, 3], "at": times}))
    good, bad = run(stream.map(lambda row: row, on_bad="divert"), pen.BAD)
    assert [row["n"] for row in good] == [1, 3]
    assert [(row["n"], row["error"].partition(":")[0]) for row in bad] == [
        (2, "OverflowError")
    ]


def test_what_is_no_choice_for_bad_rows_is_refused() -> None:
    choice: Any = "skip"
    error = mistake(lambda stream: stream.map_batches(fails_on_two, on_bad=choice))
    assert "map_batches: on_bad is 'skip': use 'fail' or 'divert'" in str(error)


@pytest.mark.parametrize(
    "schema",
    [
        schema_of(n=pa.int64(), s=pa.string()),
        pl.Schema({"n": pl.Int64, "s": pl.String}),
        {"n": pl.Int64(), "s": pl.String},
        {"n": int, "s": str},
        {"n": pa.int64(), "s": str},
    ],
)
def test_a_schema_is_arrows_polars_or_types_by_name(schema: Any) -> None:
    def to_text(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select("n", s=pl.col("n").cast(pl.String))

    for mapped in (
        a_stream().map_batches(to_text, schema=schema),
        a_stream().flat_map(lambda batch: [to_text(pl.DataFrame(batch))], schema=schema),
        a_stream().map(lambda row: {"n": row["n"], "s": str(row["n"])}, schema=schema),
    ):
        assert mapped.schema.arrow == schema_of(n=pa.int64(), s=pa.string())
        assert run(mapped)[0] == {"n": 1, "s": "1"}


@pytest.mark.parametrize("schema", [{"n": "int"}, {"n": object}, 5, ["n"], "n: int"])
def test_what_is_no_schema_is_refused_with_what_to_write(schema: Any) -> None:
    error = mistake(lambda s: s.map_batches(lambda b: b, schema=schema))
    assert "such as" in str(error) or "a pyarrow type" in str(error)


def test_pandas_goes_in_and_out_of_functions() -> None:
    def doubled(rows: pd.DataFrame) -> pd.DataFrame:
        assert type(rows) is pd.DataFrame
        return rows.assign(n=rows["n"] * 2)

    assert run(a_stream().map_batches(doubled)) == [{**r, "n": r["n"] * 2} for r in ROWS]

    def made(batch: pa.RecordBatch) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"n": [1.0, float("nan")]})

    assert run(a_stream().flat_map(made, schema={"n": int})) == [{"n": 1}, {"n": None}]


def test_a_list_of_columns_is_the_columns_and_no_value_of_a_column() -> None:
    assert a_stream().select(["n", "user"]).schema.arrow.names == ["n", "user"]
    assert a_stream().select(("n", pl.col("user"))).schema.arrow.names == ["n", "user"]
    more = a_stream().with_columns([pl.col("n").alias("m")], l=pl.lit([1]))
    assert more.schema.arrow.names == ["user", "n", "m", "l"]
    error = mistake(lambda stream: stream.with_columns({"m": pl.col("n")}))
    assert "a dictionary is no expression" in str(error)


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("user",), ("user",)),
        ((["user", "n"],), ("user", "n")),
        ((("user",), "n"), ("user", "n")),
        ((pl.col("user"),), ("user",)),
        ((cs.string(),), ("user",)),
        ((cs.all(),), ("user", "n")),
        ((pl.col("n") % 2,), ("key",)),
        (((pl.col("n") % 2).alias("parity"),), ("parity",)),
        ((pl.col("n") % 2, "user", pl.col("n") % 3), ("key", "user", "key_2")),
        ((pl.col("user").str.to_lowercase().alias("who"), "n"), ("who", "n")),
    ],
)
def test_a_key_is_named_listed_selected_or_computed(keys: Any, names: Any) -> None:
    stream = a_stream()
    keyed = stream.key_by(*keys)
    assert keyed.schema.key_columns == names
    assert set(keyed.schema.arrow.names) == {"user", "n", *names}


def test_a_computed_key_does_not_replace_a_column_silently() -> None:
    error = mistake(lambda stream: stream.key_by(n=pl.col("n") % 2, user=pl.col("user")))
    assert isinstance(error, UserError)
    assert "key_by computes keys named 'n', as columns of its rows are" in str(error)
    assert "give the keys other names, or replace the columns with with_columns" in str(
        error
    )
    assert a_stream().key_by(user="user").schema.arrow.names == ["user", "n"]


def test_a_computed_key_groups_rows() -> None:
    keyed = a_stream().key_by(parity=pl.col("n") % 2)
    counts = keyed.aggregate("counts", n=pen.count())
    assert {row["parity"]: row["n"] for row in run(counts)} == {1: 2, 0: 1}


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ((), "key_by needs at least one column"),
        (([],), "key_by names none of the columns (user, n)"),
        ((cs.boolean(),), "key_by names none of the columns (user, n)"),
        ((["usr"],), "'usr' is not a column; did you mean 'user'"),
        ((5,), "key_by takes names of columns, not 5"),
        ((None,), "key_by takes names of columns, not None"),
        ((pl.col("usr"),), "there is no column 'usr'; did you mean 'user'"),
        ((pl.col("n").sum(),), "cannot be computed row by row"),
        ((lambda row: row["user"],), "key_by takes names of columns"),
        (((pl.col("n") % 2).alias("user"),), "computes keys named 'user', as columns of"),
        (
            ((pl.col("n") % 2).alias("n"),),
            "computes keys named 'n', as columns of its rows",
        ),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_a_hint(keys: Any, hint: str) -> None:
    error = mistake(lambda stream: stream.key_by(*keys))
    assert isinstance(error, UserError)
    assert hint in str(error)


@pytest.mark.parametrize("kind", ["aggregate", "tumbling", "session"])
def test_a_key_that_rows_cannot_be_grouped_by_is_refused_when_the_pipeline_is_built(
    kind: str,
) -> None:
    rows = pa.table({"k": pa.nulls(1, pa.decimal256(40, 2)), "at": [AT]})

    def build(stream: Stream) -> None:
        keyed = stream.key_by("k")
        if kind == "aggregate":
            keyed.aggregate("counts", n=pen.count())
        else:
            window = pen.tumbling("1m") if kind == "tumbling" else pen.session("1m")
            keyed.window("counts", window).aggregate(n=pen.count())

    error = mistake(build, rows=rows, event_time="at")
    assert isinstance(error, SchemaError)
    assert "'k': Polars has no type decimal256(40, 2): cast the column" in str(error)


def test_zones_that_are_offsets_are_fine_as_keys_and_columns() -> None:
    zoned = pa.array([AT, AT], pa.timestamp("us", "+01:00"))
    stream = a_stream(pa.table({"at": zoned, "n": [1, 2]}), event_time="at")
    counts = stream.key_by("at").aggregate("counts", n=pen.count())
    assert [row["n"] for row in run(counts)] == [2]
    later = a_stream(pa.table({"at": zoned, "n": [1, 2]})).filter(pl.col("n") > 1)
    assert len(run(later.with_columns(pl.col("at").dt.hour().alias("hour")))) == 1


@pytest.mark.parametrize("is_negated", [False, True])
def test_looking_for_a_value_in_another_column_is_refused_as_it_looks_at_several_rows(
    is_negated: bool,
) -> None:
    expression = pl.col("n").is_in(pl.col("m"))
    rows = [{"n": 1, "m": 2, "l": [1]}]
    error = mistake(
        lambda stream: stream.filter(~expression if is_negated else expression), rows=rows
    )
    assert "looks at several rows: it takes all values of a column" in str(error)
    for fine in (
        pl.col("n").is_in([1, 2]),
        pl.col("n").is_in(pl.col("l")),
        pl.lit(1).is_in(pl.col("l")),
        pl.col("n").is_in(pl.concat_list("m", "n")),
    ):
        assert run(a_stream(rows).filter(fine)) == rows


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("n").replace(pl.col("m"), pl.col("n")),
        pl.col("n").replace([1], pl.col("m") + 1),
        pl.col("n").replace_strict(pl.col("m"), 1, default=0) + 1,
    ],
    ids=str,
)
def test_replacing_by_the_values_of_columns_is_refused_as_it_looks_at_several_rows(
    expression: pl.Expr,
) -> None:
    rows = [{"n": 1, "m": 2}]
    error = mistake(lambda stream: stream.with_columns(x=expression), rows=rows)
    assert "looks at several rows: it takes all values of a column" in str(error)
    fine = a_stream(rows).select(
        a=pl.col("n").replace({1: 5}),
        b=pl.col("n").replace_strict([2], [7], default=pl.col("m")),
    )
    assert run(fine) == [{"a": 5, "b": 2}]


def test_a_udf_replaces_the_column_that_it_names_as_its_output() -> None:
    twice = pen.udf(lambda n: n * 2, returns=pa.int64(), inputs=["n"], output="n")
    replaced = a_stream().udf("twice", twice)
    assert replaced.schema.arrow.names == ["user", "n"]
    assert [row["n"] for row in run(replaced)] == [2, 4, 6]
    batchwise = pen.udf(
        lambda n: n.cast(pl.String),
        returns=pa.string(),
        inputs="n",
        output="n",
        mode="polars",
    )
    assert [row["n"] for row in run(a_stream().udf("text", batchwise))] == ["1", "2", "3"]
    by_chance = pen.udf(lambda n: n, returns=pa.int64(), inputs=["n"], name="n")
    error = mistake(lambda stream: stream.udf("same", by_chance))
    assert "output='n', to replace it" in str(error)


def test_an_event_time_that_a_udf_replaces_by_something_else_is_none() -> None:
    rows = [{"at": AT}]
    spelled = pen.udf(str, returns=pa.string(), inputs=["at"], output="at")
    assert a_stream(rows, event_time="at").udf("s", spelled).schema.time_column is None
    moved = pen.udf(
        lambda at: at + dt.timedelta(1),
        returns=pa.timestamp("us"),
        inputs=["at"],
        output="at",
    )
    assert a_stream(rows, event_time="at").udf("m", moved).schema.time_column == "at"


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (lambda s: s.union("other"), "cannot read from 'other': give streams"),
        (
            lambda s: s.process("p", pen.call_udf("f"), 5),
            "cannot read from 5: give streams",
        ),
        (lambda s: s.udf("u", None), "udf 'u' takes a declared function, not None"),
        (lambda s: s.udf("u", len), "declare it, such as pen.udf(function, returns="),
        (lambda s: s.side_output(None), "has no side output None"),
    ],
)
def test_what_is_no_stream_function_or_output_is_refused_with_what_to_give(
    build: Any, hint: str
) -> None:
    assert hint in str(mistake(build))


def test_the_inputs_of_a_udf_are_names_or_plain_columns() -> None:
    for inputs in ("n", ["n"], pl.col("n"), [pl.col("n")], ("n",)):
        given: Any = inputs
        double = pen.udf(lambda n: n * 2, returns=pa.int64(), inputs=given, output="m")
        assert [row["m"] for row in run(a_stream().udf("double", double))] == [2, 4, 6]
    for wrong in (cs.numeric(), [pl.col("n") + 1], 5, [None]):
        given = wrong
        with pytest.raises(UserError, match="are no columns: name them"):
            pen.udf(len, returns=pa.int64(), inputs=given)


@pytest.mark.parametrize(
    "schema", [pl.Schema({"n": pl.Int64}), {"n": int}, {"n": pl.Int64}]
)
def test_sources_take_schemas_of_any_library(schema: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 1, "m": 2}\n')
    for source in (
        pen.list_source([{"n": 1}], schema),
        pen.files(tmp_path / "*.jsonl", schema=schema),
    ):
        stream = pen.Pipeline("p").read("rows", source)
        assert stream.schema.arrow == schema_of(n=pa.int64())
        assert stream.preview().rows() == [{"n": 1}]


def test_folders_of_a_sink_are_named_by_columns(tmp_path: Path) -> None:
    for columns in ("user", ["user"], pl.col("user")):
        given: Any = columns
        spec = pen.files(tmp_path, "parquet", partition_by=given)
        assert tuple(spec.partition_by) == ("user",)
    wrong: Any = cs.string()
    with pytest.raises(UserError, match=r"partition_by=.* are no columns: name them"):
        pen.files(tmp_path, "parquet", partition_by=wrong)
