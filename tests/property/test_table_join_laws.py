"""Laws of table joins: after every epoch the folded result is the batch join of folded inputs."""

# ruff: noqa: S608 (queries are made of words of this file)

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from penstock.testing import Amnesia, OperatorHarness
from tests.builders.aggregated_rows import bag, fold_bag
from tests.builders.joins import HOWS
from tests.builders.lives import LIVES, Life, a_job_of, after_each_epoch, live
from tests.builders.profile import by_profile
from tests.unit.state.files.file_builders import a_schema

RUNS = by_profile(default=15, ci=25, nightly=300)
"""How many lives of a join are tried, by profile: a life takes a while."""
JOBS = by_profile(default=5, ci=15, nightly=200)

DUCKDB = duckdb.connect()

Row: TypeAlias = tuple[int, int | None, int | None]
"""Of `id`, `k` and `v`."""
Change: TypeAlias = tuple[int, Row]
"""A sign and a row."""

SCHEMA = a_schema(id=pa.int64(), k=pa.int64(), v=pa.int64())
WHERE = pl.col("v") + pl.col("v_right") > 3
KINDS = ("append", "table", "settled", "keyed", "bag")
"""What a side can be; `table` is loose, and `keyed` has the join key as its table key."""

rows = st.tuples(
    st.integers(0, 4), st.sampled_from([0, 0, 1, 2, None]), st.sampled_from([0, 2, 3, None])
)
steps = st.lists(st.tuples(st.booleans(), rows), max_size=6)


def a_stream(pipeline: pen.Pipeline, name: str, kind: str) -> Any:
    """Return a stream of such a kind; only its schema counts."""

    def read(number: int) -> Any:
        return pipeline.read(f"{name}-{number}", pen.list_source([], SCHEMA))

    if kind == "append":
        return read(0)
    key = "k" if kind == "keyed" else "id"
    table = read(0).to_table(f"{name}-table", key=key, order_by="v")
    if kind == "table":
        return table.filter(pl.col("id") >= 0)
    if kind == "bag":
        return table.union(read(1).to_table(f"{name}-other", key=key, order_by="v"))
    return table


@dataclass
class SideModel:
    """What a side holds; it turns random steps into changes that its kind allows."""

    kind: str
    rows: Counter[Row] = field(default_factory=Counter)

    def run_epoch(self, asked: Sequence[tuple[bool, Row]]) -> list[Change]:
        """Take steps, and return the changes of the epoch."""
        before = self.rows.copy()
        changes = [change for step in asked for change in self._step(*step)]
        if self.kind in ("settled", "keyed"):
            return [
                *((-1, row) for row in (before - self.rows).elements()),
                *((1, row) for row in (self.rows - before).elements()),
            ]
        return changes

    def _step(self, is_added: bool, row: Row) -> list[Change]:
        if self.kind in ("append", "bag"):
            if self.kind == "bag" and not is_added:
                changes = [(-1, row)] if self.rows[row] else []
            else:
                changes = [(1, row)]
        else:
            place = 1 if self.kind == "keyed" else 0
            olds = [old for old in self.rows if old[place] == row[place]]
            changes = [*((-1, old) for old in olds), *([(1, row)] if is_added else [])]
        for sign, one in changes:
            self.rows[one] += sign
        self.rows = +self.rows
        return changes


NAMES = ("id", "k", "v", "id_right", "v_right")
"""The columns of the result, in the order of SQL."""


def to_rows(kind: str, changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return changes as the stream has them."""
    kinds = {1: "insert", -1: "delete"}
    return [
        {
            **({} if kind == "append" else {"change": kinds[sign]}),
            **dict(zip(("id", "k", "v"), row, strict=True)),
        }
        for sign, row in changes
    ]


def expected(how: str, left: Counter[Row], right: Counter[Row], *, where: bool) -> Any:
    """Return what DuckDB joins, as rows and how often they are there."""
    connection = DUCKDB.cursor()
    for name, side in (("l", left), ("r", right)):
        table = [dict(zip(("id", "k", "v"), row, strict=True)) for row in side.elements()]
        connection.register(name, pa.Table.from_pylist(table, SCHEMA))
    condition = "l.k = r.k" + (" AND l.v + r.v > 3" if where else "")
    if how in ("semi", "anti"):
        negated = "NOT" if how == "anti" else ""
        query = (
            f"SELECT * FROM l WHERE {negated} EXISTS (SELECT 1 FROM r WHERE {condition})"
        )
    else:
        query = (
            "SELECT l.id, coalesce(l.k, r.k), l.v, r.id, r.v "
            f"FROM l {how} JOIN r ON {condition}"
        )
    return Counter(connection.execute(query).fetchall())


def fold(table: Counter[Any], changes: Sequence[Mapping[str, Any]]) -> None:
    """Add the signs of changes to a table."""
    for row in changes:
        sign = -1 if row.get("change") in ("delete", "update-before") else 1
        table[tuple(row[name] for name in NAMES if name in row)] += sign
    assert all(count >= 0 for count in table.values()), (
        "a row was removed that is not there"
    )


@dataclass(frozen=True)
class Epoch:
    """What happens in an epoch, and to the job after it."""

    left: Sequence[tuple[bool, Row]]
    right: Sequence[tuple[bool, Row]]
    attempts: int
    parallelism: int | None
    """Go on with so many subtasks, in another process; None: in this one."""


epochs = st.builds(
    Epoch, steps, steps, st.sampled_from([1, 1, 2]), st.none() | st.integers(1, 3)
)


def check_key(schema: Any, table: Counter[Any]) -> None:
    """Check that no two rows of the result have the same table key."""
    if schema.table_key is None or schema.is_bag:
        return
    names = [name for name in NAMES if name in schema.arrow.names]
    places = [names.index(name) for name in schema.table_key]
    keys = Counter(tuple(row[place] for place in places) for row in table.elements())
    assert set(keys.values()) <= {1}, schema.table_key


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(HOWS),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    where=st.booleans(),
    life=st.lists(epochs, max_size=6),
    amnesia=st.sampled_from(Amnesia),
)
def test_after_every_epoch_the_result_is_the_join_of_what_the_inputs_come_to(
    *, how: Any, kinds: tuple[str, str], where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    pipeline = pen.Pipeline("p")
    left, right = (
        a_stream(pipeline, name, kind) for name, kind in zip("lr", kinds, strict=True)
    )
    condition = WHERE if where else None
    left.join("join", right, on="k", how=how, where=condition, ttl=(None, None)).write(
        "out", pen.blackhole()
    )
    node = next(n for n in pipeline.graph().nodes if n.operator == "join")
    harness = OperatorHarness(node.spec, *node.inputs, amnesia=amnesia)
    models = [SideModel(kind) for kind in kinds]
    table: Counter[Any] = Counter()
    for epoch in life:
        for index, asked in enumerate((epoch.left, epoch.right)):
            changes = models[index].run_epoch(asked)
            harness.push(to_rows(kinds[index], changes), input=index)
        harness.barrier(attempts=epoch.attempts)
        fold(table, harness.take())
        wanted = expected(how, models[0].rows, models[1].rows, where=where)
        assert +table == wanted
        check_key(node.outputs["main"], +table)
        if epoch.parallelism is not None:
            moved = harness.checkpoint()
            harness.close()
            harness = OperatorHarness.restore(
                moved, parallelism=epoch.parallelism, amnesia=amnesia
            )
    harness.close()


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    how=st.sampled_from(HOWS),
    is_table=st.tuples(st.booleans(), st.booleans()),
    where=st.booleans(),
    left=st.lists(rows, max_size=30),
    right=st.lists(rows, max_size=30),
    budget=st.integers(1, 20),
    lives=LIVES,
)
def test_after_each_epoch_a_job_leads_to_the_join_of_its_tables_however_it_is_run(
    *,
    how: Any,
    is_table: tuple[bool, bool],
    where: bool,
    left: list[Row],
    right: list[Row],
    budget: int,
    lives: list[Life],
) -> None:
    pipeline, token = pen.Pipeline("p", parallelism=2), new_token()
    streams, seen = [], []
    for name, given_rows, has_key in zip("lr", (left, right), is_table, strict=True):
        source = pen.list_source(
            to_rows("append", [(1, row) for row in given_rows]), SCHEMA
        )
        stream: Any = pipeline.read(name, source)
        seen.append(pen.list_sink(f"{name}-{token}"))
        stream.write(f"{name}-seen", seen[-1])
        streams.append(
            stream.from_upserts(f"{name}-table", key="id") if has_key else stream
        )
    out = pen.list_sink(f"joined-{token}")
    condition = WHERE if where else None
    streams[0].join(
        "join", streams[1], on="k", how=how, where=condition, ttl=(None, None)
    ).write("out", out)
    live(a_job_of(pipeline, budget), lives)
    for *read, joined in after_each_epoch(*seen, out):
        sides = []
        for side, has_key in zip(read, is_table, strict=True):
            model = SideModel("table" if has_key else "append")
            model.run_epoch([(True, (row["id"], row["k"], row["v"])) for row in side])
            sides.append(model.rows)
        table: Counter[Any] = Counter()
        fold(table, joined)
        assert +table == expected(how, *sides, where=where)


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    hows=st.tuples(st.sampled_from(HOWS[:4]), st.sampled_from(HOWS[:4])),
    given_rows=st.tuples(*[st.lists(rows, max_size=20)] * 3),
    budget=st.integers(1, 20),
    lives=LIVES,
)
def test_after_each_epoch_three_tables_lead_to_the_join_of_the_first_two_with_the_third(
    *,
    hows: tuple[Any, Any],
    given_rows: tuple[list[Row], list[Row], list[Row]],
    budget: int,
    lives: list[Life],
) -> None:
    pipeline, token = pen.Pipeline("p", parallelism=2), new_token()
    tables, seen = [], []
    for name, side in zip("abc", given_rows, strict=True):
        listed = to_rows("append", [(1, row) for row in side])
        stream = pipeline.read(name, pen.list_source(listed, SCHEMA))
        seen.append(pen.list_sink(f"{name}-{token}"))
        stream.write(f"{name}-seen", seen[-1])
        tables.append(stream.from_upserts(f"{name}-table", key="id"))
    out = pen.list_sink(f"joined-{token}")
    a, b, c = tables
    both = a.join("ab", b, on="k", how=hows[0])
    both.join("abc", c, on="k", how=hows[1], suffix="_third").write("out", out)
    live(a_job_of(pipeline, budget), lives)
    query = f"""
        WITH ab AS (
            SELECT a.id, coalesce(a.k, b.k) AS k, a.v, b.id AS id_right, b.v AS v_right
            FROM a {hows[0]} JOIN b ON a.k = b.k
        )
        SELECT ab.id, coalesce(ab.k, c.k) AS k, ab.v, ab.id_right, ab.v_right,
            c.id AS id_third, c.v AS v_third
        FROM ab {hows[1]} JOIN c ON ab.k = c.k
    """
    for *read, joined in after_each_epoch(*seen, out):
        connection = DUCKDB.cursor()
        for name, read_rows in zip("abc", read, strict=True):
            connection.register("side", pa.Table.from_pylist(read_rows, SCHEMA))
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * EXCLUDE came FROM "
                "(SELECT *, row_number() OVER () AS came FROM side) "
                "QUALIFY row_number() OVER (PARTITION BY id ORDER BY came DESC) = 1"
            )
        wanted = connection.sql(query).to_arrow_table().to_pylist()
        assert fold_bag(joined) == bag(wanted)
