"""A driver of the counting job, to be killed, interrupted or put to sleep by a test.

It starts Spark at once, on the master of its argument, and runs the job once per order. `sleep` names a storage call of the
driver before which it stops, driver and JVM, until the test wakes it up; with `hangs` the
second epoch does not end until the test lets it go.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.spark.session import open_session
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import Call, Fault, FaultMode, FaultyStore
from tests.builders.spark_session import orders, say
from tests.spark.counting_job import SETTINGS, CountingJob, Hangs


def fall_asleep(call: Call) -> None:
    """Stop this process and its JVM."""
    say("asleep", path=call.path)
    os.killpg(0, signal.SIGSTOP)


def sleepy(store: ObjectStore, sleep: list[Any]) -> ObjectStore:
    """Return a store at one call of which the driver stops; workers never make such a call."""
    operation, path, number = sleep
    mode = FaultMode.DELAY
    fault = Fault(mode, at=number, operation=operation, path=path, hook=fall_asleep)
    return FaultyStore(store, fault)


def report(status: JobStatus) -> None:
    say("status", phase=status.phase, epoch=status.epoch, generation=status.generation)


def main() -> None:
    session = open_session(*sys.argv[1:] or ["local[2,4]"], name="counting")
    say("ready")
    for order in orders():
        folder = Path(order["folder"])
        harm = Hangs(folder / "marks") if order.get("hangs") else None
        job = CountingJob(folder, rows=order["rows"], harm=harm)
        store = sleepy(job.store, order["sleep"]) if order.get("sleep") else job.store
        try:
            settings = replace(SETTINGS, budget=SourceBudget(rows=order.get("budget", 100)))
            status = job.run(
                session=session, store=store, settings=settings, on_status=report
            )
            say("ended", phase=status.phase)
        except PenstockError as error:
            sys.stderr.write(f"failed: {error!r}\n")
            sys.stderr.flush()
            say("failed", kind=type(error).__name__, message=str(error))
    session.stop()


if __name__ == "__main__":
    main()
