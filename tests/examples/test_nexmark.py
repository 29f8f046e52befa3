"""Every query of Nexmark gives what SQL gives, with small epochs, stopped, rescaled and killed."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import penstock as pen
from examples.nexmark.__main__ import main, queries
from examples.nexmark.site import KINDS, Site, generated
from penstock.core.clock import new_token
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import CrashError, Fault, FaultMode, LocalJob
from tests.builders.aggregated_rows import fold
from tests.examples.nexmark_sql import SQL

EVENTS = 6_000
KEYS = {
    "q4": ["category"],
    "q9": ["id"],
    "q19": ["auction", "rank"],
    "q15": ["day"],
    "q16": ["channel", "day"],
    "q17": ["auction", "day"],
    "q18": ["bidder", "auction"],
}
"""The keys of queries whose output is a changelog."""
SMALL = {"q3": 50, "q8": 50}
"""The rows of a small epoch of queries that read few events."""


@pytest.fixture(scope="module")
def expected() -> Mapping[str, Counter[Any]]:
    """Return the rows that SQL gives of the same events, by query."""
    tables = {}
    for kind in KINDS:
        pipeline, rows = pen.Pipeline("all"), pen.list_sink(f"all-{kind}-{new_token()}")
        generated(EVENTS)(pipeline, kind).write("out", rows)
        pipeline.run_in_process("memory:")
        tables[kind] = pa.Table.from_batches(rows.batches())
    with duckdb.connect() as connection:
        for kind, table in tables.items():
            connection.register(kind, table)
        return {name: counted(connection.sql(sql).arrow()) for name, sql in SQL.items()}


def counted(rows: Any) -> Counter[Any]:
    """Return how often each row is there; columns in any order, fractions rounded."""
    table = rows if isinstance(rows, list) else rows.read_all().to_pylist()
    return Counter(
        tuple(
            sorted(
                (name, round(value, 6) if isinstance(value, float) else value)
                for name, value in row.items()
            )
        )
        for row in table
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", queries())
@pytest.mark.parametrize("mode", ["at once", "small epochs", "rescaled", "killed"])
def test_a_query_gives_what_sql_gives(
    name: str, mode: str, expected: Mapping[str, Counter[Any]]
) -> None:
    pipeline, out = pen.Pipeline("nexmark", parallelism=2), pen.list_sink(new_token())
    queries()[name](Site(pipeline, generated(EVENTS, splits=2))).write("out", out)
    rows = EVENTS if mode == "at once" else SMALL.get(name, 700)
    budget = SourceBudget(rows=rows)
    job = LocalJob(pipeline, settings=DriverSettings(budget=budget, adapts_budget=False))
    if mode == "rescaled":
        job.run(epochs=3)
    elif mode == "killed":
        for at in (2, 5):
            fault = Fault(FaultMode.CRASH_AFTER, at, "create", "*/manifest.pb")
            with pytest.raises(CrashError):
                job.run(fault)
    job.run_until_done(parallelism=3 if mode == "rescaled" else 2)
    found = out.rows()
    if name in KEYS:
        keys = KEYS[name]
        table = fold(found, keys)
        found = [dict(zip(keys, key, strict=True)) | row for key, row in table.items()]
    assert counted(found) == expected[name]


def test_the_command_lists_the_queries_and_runs_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([])
    assert "q5   Find the auctions with most bids" in capsys.readouterr().out
    main(["q2", "--events", "2k", "--in-process"])
    said = capsys.readouterr().out
    assert "q2: 2,000 events in" in said
    assert "'auction'" in said
