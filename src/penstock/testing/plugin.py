"""The pytest plug-in: the fixtures of the test kit, available once Penstock is installed.

| fixture | is |
|---|---|
| `memory_store` | an empty store of this test |
| `faulty_store` | a function: faults → a store over `memory_store` that has them |
| `manual_clock` | a clock that stands at the beginning of 2026 |
| `operator_harness` | `OperatorHarness`, closed after the test |
| `source_harness` | `SourceHarness`, closed after the test |
| `local_job` | `LocalJob` on `memory_store` and `manual_clock` |
| `run_pipeline` | runs a pipeline to its end on the same; returns its status |

A fixture imports what it needs when it is used, because every run of pytest loads this file.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.runtime.driver.decide import JobStatus
    from penstock.state.storage.memory import MemoryStore
    from penstock.testing.faults import FaultyStore
    from penstock.testing.harness import OperatorHarness, SourceHarness
    from penstock.testing.pipelines import LocalJob


@pytest.fixture
def memory_store() -> "MemoryStore":
    """An empty store of this test."""
    from penstock.state.storage.memory import MemoryStore

    return MemoryStore()


@pytest.fixture
def faulty_store(memory_store: "MemoryStore") -> Callable[..., "FaultyStore"]:
    """Make stores over `memory_store` that have the given faults."""
    from penstock.testing.faults import FaultyStore

    return lambda *faults: FaultyStore(memory_store, *faults)


@pytest.fixture
def manual_clock() -> "ManualClock":
    """A clock that stands at the beginning of 2026 until it is moved."""
    from penstock.core.clock import ManualClock
    from penstock.testing.given import START, to_instant

    return ManualClock(to_instant(START))


def _made(kind: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a function that makes harnesses of a kind, and close them afterwards."""
    with ExitStack() as opened:
        yield lambda *arguments, **options: opened.enter_context(
            kind(*arguments, **options)
        )


@pytest.fixture
def operator_harness() -> Iterator[Callable[..., "OperatorHarness"]]:
    """Make harnesses of operators; they are closed after the test."""
    from penstock.testing.harness import OperatorHarness

    yield from _made(OperatorHarness)


@pytest.fixture
def source_harness() -> Iterator[Callable[..., "SourceHarness"]]:
    """Make harnesses of sources; they are closed after the test."""
    from penstock.testing.harness import SourceHarness

    yield from _made(SourceHarness)


@pytest.fixture
def local_job(
    memory_store: "MemoryStore", manual_clock: "ManualClock"
) -> Callable[..., "LocalJob"]:
    """Make jobs that run in this process; those of one test share store and clock."""
    from penstock.testing.pipelines import LocalJob

    def make(pipeline: Any, **options: Any) -> LocalJob:
        shared: dict[str, Any] = {"store": memory_store, "clock": manual_clock}
        return LocalJob(pipeline, **(shared | options))

    return make


@pytest.fixture
def run_pipeline(local_job: Callable[..., "LocalJob"]) -> Callable[..., "JobStatus"]:
    """Run pipelines to their end; a second run of one in the same test is a restart."""

    def run(pipeline: Any, *faults: Any, **options: Any) -> "JobStatus":
        return local_job(pipeline).run(*faults, **options)

    return run
