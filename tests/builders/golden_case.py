"""A golden case: a pipeline whose output another engine has computed, and how they compare.

To add one, write the function that builds its pipeline and list it in
`tests/golden_cases/catalog.py`; all modes of both executors follow from that:

    def hourly_by_event_type(inputs: GoldenInputs) -> ps.Stream:
        cars = inputs.cars(lateness="1m")
        return cars.key_by("event_type").…          # columns as in expected/

    GoldenCase(
        "hourly_by_event_type",                     # of expected/{name}.json
        hourly_by_event_type,
        instants=["hour"],                          # compared as instants, not as text
    )

The function returns the stream whose rows are the expected ones; the framework puts the sink
behind it. Stateful steps need names, and the same ones in every call: the job is stopped,
killed and restored with pipelines that are built anew. A changelog is a stream of `before`,
`after` and `op`, and `fold_by` names its key: then the tables it leads to are compared.
`largest_input` is what an epoch's rows are counted by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import penstock as ps
from penstock.state.storage.urls import open_store
from tests.builders.golden_data import GoldenInputs
from tests.builders.golden_rows import Row, fold_changes, parse_lines, to_multiset

SHOWN = 3


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One row of the table in the README of the data."""

    name: str
    build: Callable[[GoldenInputs], ps.Stream]
    largest_input: Literal["cars", "impulse", "aggregate_updates"] = "cars"
    instants: Sequence[str] = ()
    fold_by: Sequence[str] = ()

    def pipeline(self, data: Path, output: str, *, parallelism: int) -> ps.Pipeline:
        """Build the job anew, writing JSON lines exactly once to a folder."""
        pipeline = ps.Pipeline(self.name.replace("_", "-"), parallelism=parallelism)
        rows = self.build(GoldenInputs(pipeline, data))
        rows.write("out", ps.files(output, format="jsonl"))
        return pipeline

    def row_count(self, data: Path) -> int:
        """Return how many rows the largest input has."""
        return (data / "inputs" / f"{self.largest_input}.json").read_bytes().count(b"\n")

    def check(self, data: Path, output: str) -> None:
        """Compare what was committed with what is expected, as text that others would read."""
        store = open_store(output)
        found: list[Row] = []
        for file in ps.committed_files(store):
            text = store.read(file.path)
            assert text is not None, file.path
            found += parse_lines(text)
        expected = parse_lines((data / "expected" / f"{self.name}.json").read_bytes())
        if self.fold_by:
            found = fold_changes(found, self.fold_by)
            expected = fold_changes(expected, self.fold_by)
        wanted, there = (to_multiset(rows, self.instants) for rows in (expected, found))
        missing, surplus = wanted - there, there - wanted
        if missing or surplus:
            raise AssertionError(
                f"{self.name}: of {wanted.total()} rows {missing.total()} are missing, such "
                f"as {list(missing)[:SHOWN]}, and {surplus.total()} are too many, such as "
                f"{list(surplus)[:SHOWN]}"
            )
