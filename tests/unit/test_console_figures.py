"""Figures are read at a glance, and odd ones do not break the display."""

from dataclasses import replace

import pytest

from penstock.console import RowRate, show_storage
from penstock.core.figures import show_bytes, show_instant, show_seconds
from penstock.core.watermark import MAX_MICROS, MIN_MICROS
from penstock.runtime.driver.decide import JobPhase, JobStatus, OperatorStatus
from penstock.runtime.driver.progress import EpochProgress

SECOND = 1_000_000
STATUS = JobStatus(
    "job",
    JobPhase.RUNNING,
    operators=(
        OperatorStatus("read", "nexmark", 2, 900, state_bytes=10, state_files=1),
        OperatorStatus("count", "process", 2, 900, watermark_micros=7 * SECOND),
        OperatorStatus(
            *("out", "files", 2, 40), watermark_micros=5 * SECOND, state_bytes=2,
            state_files=3, is_sink=True,
        ),
    ),
)  # fmt: skip


def test_a_job_s_figures_add_up_its_operators() -> None:
    assert STATUS.state_bytes == 12
    assert STATUS.state_files == 4
    assert STATUS.rows_written == 40


def test_storage_is_told_with_the_cache_if_that_was_asked() -> None:
    epoch = EpochProgress(3, True, 0, 0, 0, 0, 2_048, 0, storage_requests=4)
    assert show_storage(epoch) == "4 requests, 2.0 KiB written"
    cached = replace(epoch, cache_hits=99, cache_misses=1)
    assert show_storage(cached) == "4 requests, 2.0 KiB written, cache hits 99%"


def test_the_watermark_is_what_all_operators_have_reached() -> None:
    assert STATUS.watermark_micros == 5 * SECOND
    assert JobStatus("job", JobPhase.STARTING).watermark_micros is None


def test_the_rate_looks_back_a_few_seconds_only() -> None:
    rate = RowRate(window_micros=5 * SECOND)
    assert rate.rows_per_second == 0
    rate.note(0, 0)
    assert rate.rows_per_second == 0
    rate.note(2 * SECOND, 200)
    assert rate.rows_per_second == 100
    rate.note(12 * SECOND, 200)
    rate.note(14 * SECOND, 1_200)
    assert rate.rows_per_second == pytest.approx(1_000 / 12)
    rate.note(18 * SECOND, 5_200)
    assert rate.rows_per_second == pytest.approx(5_000 / 6)


def test_a_clock_that_stands_still_has_no_rate() -> None:
    rate = RowRate()
    rate.note(SECOND, 1)
    rate.note(SECOND, 9)
    assert rate.rows_per_second == 0


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (None, "none yet"),
        (MAX_MICROS, "end of data"),
        (1_436_918_501_250_000, "2015-07-15 00:01:41.2"),
        (-1, "1969-12-31 23:59:59.9"),
        (MIN_MICROS, "-9,223,372,036,854,775,808 us"),
    ],
)
def test_an_instant_is_shown_whatever_it_is(micros: int | None, text: str) -> None:
    assert show_instant(micros) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (8 << 30, "8.0 GiB"), (1 << 60, "1048576.0 TiB")],
)  # fmt: skip
def test_a_size_keeps_short(size: int, text: str) -> None:
    assert show_bytes(size) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [(830_000, "0.83 s"), (61 * SECOND, "1:01"), (3_700 * SECOND, "61:40")],
)
def test_a_duration_is_precise_while_it_is_short(micros: int, text: str) -> None:
    assert show_seconds(micros) == text
