"""One epoch of a harness: its terms before it runs, and what users see of it afterwards."""

from functools import cache

from penstock.connectors.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch
from penstock.core.signals import CheckpointBarrier
from penstock.operators.nodes import EpochTerms
from penstock.operators.registry import Registry
from penstock.operators.source import SourceFinishType
from penstock.runtime.session import SMALLEST_STEP_MICROS
from penstock.testing.chain_subtasks import ChainRun, ChainState
from penstock.testing.emitted import EpochOutput

START = "2026-01-01"
"""When a harness's clock starts."""


@cache
def shared_registry() -> Registry:
    """Return the registry of tests in this process; filling one takes milliseconds."""
    return default_registry()


def next_terms(
    state: ChainState,
    clock: ManualClock,
    *,
    is_stop: bool = False,
    then_stop: bool = False,
) -> EpochTerms:
    """Fix the terms of the epoch after `state`: time never stands still and never goes back."""
    previous = state.processing_time_micros
    now = clock.now_micros()
    if previous is not None:
        now = max(now, previous + SMALLEST_STEP_MICROS)
    epoch = Epoch(state.epoch + 1)
    barrier = CheckpointBarrier(epoch, epoch, now, then_stop=then_stop)
    parent = Epoch(state.epoch) if state.epoch else None
    return EpochTerms(barrier, now, previous, is_stop=is_stop, parent=parent)


def to_output(terms: EpochTerms, run: ChainRun) -> EpochOutput:
    """Return what users see of an epoch."""
    counters: dict[str, int] = {}
    wake_ups: list[int] = []
    finish: SourceFinishType | None = None
    for report in run.reports.values():
        for name, amount in report.counters.items():
            counters[name] = counters.get(name, 0) + amount
        if report.wake_up_micros is not None:
            wake_ups.append(report.wake_up_micros)
        finish = report.finish or finish
    return EpochOutput(
        int(terms.barrier.epoch),
        run.emitted,
        run.watermark,
        counters,
        min(wake_ups, default=None),
        finish,
    )
