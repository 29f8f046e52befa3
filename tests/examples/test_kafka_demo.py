"""The Kafka demo's job finds what batch finds, and its proof would notice if it did not."""

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from examples.kafka_demo.__main__ import tell_of_proof
from examples.kafka_demo.feed import EVENTS_PER_SECOND, Feed, create_topics, make_rows
from examples.kafka_demo.job import Answers, build, recompute
from examples.kafka_demo.proof import compare, read_outputs
from examples.kafka_demo.run_job import EndWhenRead
from scripts.servers.installation import install
from scripts.servers.kafka import KafkaCluster
from tests.architecture.project import ROOT
from tests.builders.profile import by_profile

EVENTS = 5_000
DEADLINE_SECONDS = 240
PROMISED_SECONDS = 180
"""How long the whole demo takes at most."""


@pytest.fixture(scope="module")
def answers() -> Answers:
    return recompute(*make_rows(0, EVENTS))


def test_the_proof_is_about_rows_of_all_kinds(answers: Answers) -> None:
    assert answers.sales.height > EVENTS * 0.8
    assert answers.windows["bids"].sum() == answers.sales.height
    assert all(comparison.is_equal for comparison in compare(answers, answers))


def test_the_feed_makes_the_same_rows_however_they_are_cut(answers: Answers) -> None:
    bids, auctions = make_rows(0, EVENTS // 2)
    more_bids, more_auctions = make_rows(EVENTS // 2, EVENTS)
    again = recompute(bids.vstack(more_bids), auctions.vstack(more_auctions))
    assert all(comparison.is_equal for comparison in compare(again, answers))


def test_the_proof_notices_a_row_that_is_missing_and_one_that_is_there_twice(
    answers: Answers,
) -> None:
    once_more = answers.windows.head(1)
    written = replace(
        answers, sales=answers.sales[1:], windows=answers.windows.vstack(once_more)
    )
    windows, sales = compare(written, answers)
    assert (windows.missing, windows.extra, windows.is_equal) == (0, 1, False)
    assert (sales.missing, sales.extra, sales.is_equal) == (1, 0, False)

    console = Console(file=io.StringIO(), width=200)
    tell_of_proof(console, [windows, sales])
    told = console.file
    assert isinstance(told, io.StringIO)
    assert told.getvalue().count("different") == 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Return a broker of its own: the demo's topics have fixed names."""
    with KafkaCluster.start(tmp_path / "broker") as cluster:
        yield cluster


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_the_job_finds_what_batch_finds_and_goes_on_with_another_parallelism(
    broker: KafkaCluster, tmp_path: Path
) -> None:
    create_topics(broker.bootstrap)
    feed = Feed(broker.bootstrap)
    feed.start()
    table, checkpoints = tmp_path / "table", str(tmp_path / "checkpoints")

    first = build(broker.bootstrap, table, parallelism=2)
    with first.start_in_process(checkpoints) as job:
        while job.status.epochs_published < 1:
            assert job.is_running
            time.sleep(0.02)
    feed.end(2)
    (tmp_path / "fed").touch()
    watch = EndWhenRead(tmp_path / "fed", lambda _: None)
    rescaled = build(broker.bootstrap, table, parallelism=3)
    with rescaled.start_in_process(checkpoints, on_status=watch) as job:
        while not watch.has_read_all.wait(0.02):
            assert job.is_running

    wanted = recompute(*make_rows(0, feed.events))
    assert feed.events >= 2 * EVENTS_PER_SECOND
    comparisons = compare(read_outputs(broker.bootstrap, table, wanted), wanted)
    assert [each for each in comparisons if not each.is_equal] == []


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not by_profile(default=0, ci=0, nightly=1), reason="takes minutes: `make soak` runs it"
)
def test_the_demo_tells_its_story_to_the_end_and_cleans_up(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    install("kafka")  # downloads do not count
    began = time.perf_counter()
    told = subprocess.run(
        [sys.executable, "-m", "examples.kafka_demo", "--folder", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert time.perf_counter() - began < PROMISED_SECONDS
    assert told.count("kill -9") == 2
    assert "Nothing was lost, and nothing was doubled." in told
    assert not folder.exists()
