"""The demo: hot items on Spark. The job is killed half-way, goes on, and has lost nothing.

    python -m examples.demo [--events N] [--folder FOLDER]

Runs the job in a process of its own, which kills itself and its JVM with SIGKILL half-way;
runs it again, which goes on from the last checkpoint; then computes the same answer in batch
and compares. Ends with 0 only if both are equal. Writes below one folder of the checkout.
"""

import argparse
import shutil
import signal
from pathlib import Path
from time import perf_counter
from typing import NoReturn

import polars as pl
from rich.console import Console
from rich.table import Table

import penstock as pen
from examples.demo.job import SLIDE, WIDTH, read_output, recompute, rows_of
from examples.demo.proof import Comparison, compare
from examples.demo.run_job import INTERRUPTED
from examples.job_process import ROOT, end_on_signals, run_job
from penstock.state.storage.urls import open_store

FOLDER = ROOT / "demo-output"
EVENTS = 16_000_000
_JOB = "examples.demo.run_job"
_OURS = ("parquet", "checkpoints", "tmp")
"""All that is ever written to the folder."""


class DemoFailedError(Exception):
    """A run ended in another way than the story wants; carries the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def main() -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    end_on_signals()
    console = Console(highlight=False, soft_wrap=True)
    try:
        return tell(console, options.folder.resolve(), options.events)
    except DemoFailedError as failed:
        return failed.code


def tell(console: Console, folder: Path, events: int) -> int:
    """Run, kill, run again, compare."""
    began = perf_counter()
    clean(folder)
    rows = rows_of(events)
    console.print(
        f"\n[bold]{rows:,} Nexmark bids → hot items: most bids in {WIDTH}, every {SLIDE} → "
        "Parquet, exactly once[/bold]"
    )
    console.print(f"[dim]Everything is written below {_shown(folder)}/.[/dim]")

    console.print("\n[bold]1  Run the job. It is killed half-way.[/bold]")
    code = run_job(_JOB, folder, "--events", str(events), "--die-after", str(rows // 2))
    console.show_cursor()
    if code != -signal.SIGKILL:
        _give_up(
            console, code, f"The job was to be killed, and ended by itself with {code}."
        )
    _tell_of_death(console, folder)

    console.print("\n[bold]2  Run it again. It goes on from the last checkpoint.[/bold]")
    code = run_job(_JOB, folder, "--events", str(events))
    if code != 0:
        _give_up(console, code, f"The job did not finish: it ended with {code}.")

    console.print("\n[bold]3  Compute the same in batch, and compare.[/bold]")
    written = read_output(folder / "parquet")
    comparisons = compare(written, recompute(events))
    tell_of_proof(console, comparisons)
    tell_of_hot_items(console, written)
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    is_equal = all(comparison.is_equal for comparison in comparisons)
    if is_equal:
        console.print(
            "\n[bold green]Nothing was lost, and nothing was doubled.[/bold green]"
        )
    else:
        console.print(
            "\n[bold red]The answers differ: this is a bug of Penstock.[/bold red]"
        )
    console.print(
        f"[dim]{perf_counter() - began:.0f} s. The result is in {_shown(folder)}/parquet, the "
        f"state in {_shown(folder)}/checkpoints: Parquet as well.[/dim]"
    )
    return 0 if is_equal else 1


def clean(folder: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _OURS:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "tmp").mkdir()


def _give_up(console: Console, code: int, why: str) -> NoReturn:
    console.print("Stopped. `make demo` begins anew." if code == INTERRUPTED else why)
    # A run that ended well too early is no success of the demo, and a signal has no code.
    raise DemoFailedError(code if code > 0 else 1)


def _tell_of_death(console: Console, folder: Path) -> None:
    # An open store, because death may come before the first file.
    files = pen.committed_files(open_store(folder / "parquet"))
    rows = sum(file.row_count for file in files)
    staged = [
        path for path in (folder / "parquet" / "_staging").rglob("*") if path.is_file()
    ]
    if console.is_terminal:
        console.print()
    console.print(
        "[bold red]kill -9[/bold red]: the driver and its JVM are gone. "
        f"Committed until now: {rows:,} windows of {len({file.epoch for file in files})} epochs. "
        f"Left half done: {len(staged)} files."
    )


def tell_of_proof(console: Console, comparisons: list[Comparison]) -> None:
    """Show what was compared, and what came of it."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("committed", justify="right")
    table.add_column("in batch", justify="right")
    table.add_column("")
    for found in comparisons:
        verdict = "[green]equal[/green]"
        if not found.is_equal:
            verdict = f"[red]{found.differing:,} differ[/red]"
        table.add_row(
            found.question, f"{found.written:,}", f"{found.recomputed:,}", verdict
        )
    console.print(table)


def tell_of_hot_items(console: Console, written: pl.DataFrame) -> None:
    """Show the ranking of the window in which an auction had most bids of all."""
    best = written.sort(pl.col("hottest").list.first().struct.field("bids")).tail(1)
    for window_end, hottest in best.select("window_end", "hottest").iter_rows():
        ranking = ", ".join(f"{item['auction']} ({item['bids']} bids)" for item in hottest)
        console.print(
            f"\nHottest of all, in the {WIDTH} to {window_end:%H:%M:%S}: {ranking}."
        )


def _shown(folder: Path) -> str:
    """Return a folder as people here would name it."""
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


if __name__ == "__main__":
    pen.main(main)
