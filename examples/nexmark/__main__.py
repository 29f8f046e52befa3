"""Runs a query of Nexmark and prints how many rows came out, how fast, and the first of them.

python -m examples.nexmark q5 --events 10M
python -m examples.nexmark              # lists the queries
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

import penstock as pen
from examples.nexmark import join_queries, row_queries, table_queries, window_queries
from examples.nexmark.site import Site, generated

Query = Callable[[Site], pen.Stream]
_UNITS = {"k": 1_000, "M": 1_000_000}
FOLDERS = {"q10": ("day", "minute")}
"""The columns by which the rows of a query are written into folders."""
_SHOWN_ROWS = 5


def queries() -> dict[str, Query]:
    """Return all queries by name, in their order."""
    modules = (row_queries, window_queries, table_queries, join_queries)
    found = {
        name: function
        for module in modules
        for name, function in vars(module).items()
        if name[0] == "q" and name[1:].isdigit()
    }
    return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))


def to_count(text: str) -> int:
    """Return a number of events such as 10M.

    >>> to_count("10M"), to_count("1.5k"), to_count("7")
    (10000000, 1500, 7)
    """
    unit = _UNITS.get(text[-1:], 1)
    return int(float(text.rstrip("kM")) * unit)


def run(name: str, events: int, parallelism: int, *, in_process: bool) -> None:
    """Run a query over generated events, and print what came out."""
    pipeline = pen.Pipeline(f"nexmark-{name}", parallelism=parallelism)
    result = queries()[name](Site(pipeline, generated(events, splits=parallelism)))
    progress = pen.Progress()
    started = time.perf_counter()

    def on_status(status: pen.JobStatus) -> None:
        nonlocal started
        if status.epochs_run == 0:
            started = time.perf_counter()  # the start of Spark does not count
        progress(status)

    with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
        output = Path(folder) / "out"
        folders = FOLDERS.get(name, ())
        result.write("out", pen.files(output, format="parquet", partition_by=folders))
        start = pipeline.run_in_process if in_process else pipeline.run
        status = start(Path(folder) / "checkpoints", on_status=on_status)
        seconds = time.perf_counter() - started
        first = _first_rows(output)
    sys.stdout.write(
        f"{name}: {events:,} events in {seconds:.1f} s, {events / seconds:,.0f} events/s; "
        f"{status.rows_written:,} rows came out"
    )
    sys.stdout.write(f", the first of them:\n{first}\n" if first.height else "\n")


def _first_rows(output: Path) -> pl.DataFrame:
    """Return a few rows; all of them may be more than fit into memory."""
    files = [output / file.path for file in pen.committed_files(output)]
    few = [
        pl.read_parquet(
            file, n_rows=_SHOWN_ROWS, hive_partitioning=True, try_parse_hive_dates=False
        )
        for file in files[:_SHOWN_ROWS]
    ]
    return pl.concat(few).head(_SHOWN_ROWS) if few else pl.DataFrame()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments; without a query, list them all."""
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description=__doc__)
    parser.add_argument("query", nargs="?", choices=queries(), help="such as q5")
    parser.add_argument("--events", type=to_count, default=1_000_000, help="such as 10M")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--in-process", action="store_true", help="without Spark")
    given = parser.parse_args(arguments)
    if given.query is None:
        for name, query in queries().items():
            sys.stdout.write(f"{name:4} {query.__doc__}\n")
        return
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_cols=-1, tbl_width_chars=120):
        run(given.query, given.events, given.parallelism, in_process=given.in_process)


if __name__ == "__main__":
    main()
