"""The Kafka demo: a job between real systems is killed twice and rescaled, and has lost nothing.

    python -m examples.kafka_demo [--epochs N] [--folder FOLDER]

Starts a broker, feeds it with bids and auctions at a steady pace, and runs a job that joins and
counts them into a topic and a Delta table. The job is killed twice with SIGKILL and goes on with
another parallelism; then the same is computed in batch and compared. Ends with 0 only if both
are equal. Whatever happens, the broker ends and the folder is removed.
"""

import argparse
import shutil
import signal
import threading
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

import penstock as pen
from examples.job_process import ROOT, end_on_signals, run_job
from examples.kafka_demo.feed import EVENTS_PER_SECOND, Feed, create_topics, make_rows
from examples.kafka_demo.job import recompute
from examples.kafka_demo.proof import Comparison, compare, read_outputs
from examples.kafka_demo.run_job import FED
from scripts.servers.installation import InstallError, install
from scripts.servers.kafka import KafkaCluster

FOLDER = ROOT / "demo-output" / "kafka"
EPOCHS = 5
SECONDS_AFTER_DEATH = 10
"""For how long the feed goes on when the job was killed for the last time."""
PARALLELISM, RESCALED = 2, 3


class DemoFailedError(Exception):
    """A run ended in another way than the story wants."""


def main() -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.kafka_demo", description=__doc__
    )
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help="that a run has before it is killed"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    end_on_signals()
    console = Console(highlight=False, soft_wrap=True)
    folder = options.folder.resolve()
    try:
        install("kafka")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tmp").mkdir(parents=True)
        return tell(console, folder, options.epochs)
    except (DemoFailedError, InstallError) as failed:
        console.print(f"[bold red]{failed}[/bold red]")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tell(console: Console, folder: Path, epochs: int) -> int:
    """Start the broker and the feed; run, kill, run, kill, rescale, compare."""
    began = perf_counter()
    console.print(
        "\n[bold]Nexmark's bids and auctions in Kafka → join → Delta, and → windows per category → "
        "Kafka, exactly once[/bold]"
    )
    with KafkaCluster.start(folder / "broker") as broker:
        create_topics(broker.bootstrap)
        feed = Feed(broker.bootstrap)
        feed.start()
        console.print(
            f"[dim]A broker is up at {broker.bootstrap}. From now on it gets {EVENTS_PER_SECOND:,} "
            "events a second, whatever happens to the job.[/dim]"
        )
        for number, what in enumerate(("Run the job.", "Run it again."), start=1):
            console.print(f"\n[bold]{number}  {what} It is killed.[/bold]")
            _run_and_kill(console, folder, broker.bootstrap, epochs)
            console.print(
                "[bold red]kill -9[/bold red]: the driver and its JVM are gone. "
                f"In Kafka until now: {feed.events:,} events."
            )
        console.print(
            f"\n[bold]3  Run it with {RESCALED} subtasks instead of {PARALLELISM}, until all is "
            "read.[/bold]"
        )
        _end_feed(feed, folder)
        code = _run_job(folder, broker.bootstrap, RESCALED)
        if code != 0:
            raise DemoFailedError(f"The job did not finish: it ended with {code}.")
        console.print("\n[bold]4  Compute the same in batch, and compare.[/bold]")
        wanted = recompute(*make_rows(0, feed.events))
        written = read_outputs(broker.bootstrap, folder / "table", wanted)
    comparisons = compare(written, wanted)
    tell_of_proof(console, comparisons)
    is_equal = all(comparison.is_equal for comparison in comparisons)
    console.print(
        "\n[bold green]Nothing was lost, and nothing was doubled.[/bold green]"
        if is_equal
        else "\n[bold red]The answers differ: this is a bug of Penstock.[/bold red]"
    )
    console.print(f"[dim]{perf_counter() - began:.0f} s. All is cleaned up.[/dim]")
    return 0 if is_equal else 1


def _run_and_kill(console: Console, folder: Path, servers: str, epochs: int) -> None:
    code = _run_job(folder, servers, PARALLELISM, "--die-after", str(epochs))
    console.show_cursor()
    if code != -signal.SIGKILL:
        raise DemoFailedError(f"The job was to be killed, and ended by itself with {code}.")
    if console.is_terminal:
        console.print()


def _end_feed(feed: Feed, folder: Path) -> None:
    """Have the feed end soon, and let the job know when all rows are in Kafka."""

    def wait() -> None:
        feed.end(SECONDS_AFTER_DEATH)
        (folder / FED).touch()

    threading.Thread(target=wait, name="end-feed", daemon=True).start()


def _run_job(folder: Path, servers: str, parallelism: int, *options: str) -> int:
    given = ("--servers", servers, "--parallelism", str(parallelism))
    return run_job("examples.kafka_demo.run_job", folder, *given, *options)


def tell_of_proof(console: Console, comparisons: list[Comparison]) -> None:
    """Show what was compared, and what came of it."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("committed", "in batch", "missing", "too many"):
        table.add_column(column, justify="right")
    table.add_column("")
    for found in comparisons:
        verdict = "[green]equal[/green]" if found.is_equal else "[red]different[/red]"
        counts = (found.written, found.recomputed, found.missing, found.extra)
        table.add_row(found.question, *(f"{count:,}" for count in counts), verdict)
    console.print(table)


if __name__ == "__main__":
    pen.main(main)
