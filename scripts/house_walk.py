"""Run two jobs in this process and print which functions of Penstock their second epochs enter.

    PYTHONPATH=ROOT/src python scripts/house_walk.py ROOT/src       run by house.py

The pipeline is nexmark → filter → tumbling window → files sink, state and output on disk:

    closing    a small job: the first epoch reads all rows, the second closes the last
               windows, commits their rows and ends the job
    reading    a job of many epochs: the second reads, filters, exchanges and counts a
               million rows or more, closes windows and commits their rows

Counted are functions that people wrote: `def`s, nested ones too, in any thread; no lambdas,
no comprehensions, nothing that is generated (dataclasses, protobuf). An epoch lasts from
the last status before it to the first after it. Each function is printed once, in order of
their first calls, as JSON. Only public names are used, so that any commit can be walked.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import polars as pl

import penstock as pen

PACKAGE = Path(pen.__file__).resolve().parent
EVENTS = {"closing": 20_000, "reading": 4_000_000}


class Walk:
    """The functions that the second epoch of a job enters, in order."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str, int, str], None] = {}
        self.rows_read: list[int] = []
        """After each epoch, in total."""
        self._is_recording = False

    def note_call(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._is_recording and is_written(frame.f_code):
            code = frame.f_code
            self.codes[code.co_filename, code.co_firstlineno, code.co_qualname] = None

    def note_status(self, status: pen.JobStatus) -> None:
        if status.epochs_run > len(self.rows_read):
            self.rows_read.append(status.rows_read)
        if status.epochs_run == 1:
            self.codes.clear()
        self._is_recording = status.epochs_run == 1

    def steps(self) -> list[dict[str, Any]]:
        return [
            {
                "file": Path(file).relative_to(PACKAGE).as_posix(),
                "line": line,
                "function": function,
            }
            for file, line, function in self.codes
        ]


def is_written(code: CodeType) -> bool:
    """Tell whether somebody wrote this function, in this package, by name."""
    return (
        code.co_filename.startswith(f"{PACKAGE}/")
        and not code.co_filename.endswith("_pb2.py")
        and not code.co_name.startswith("<")
    )


def walk(events: int, folder: Path) -> Walk:
    pipeline = pen.Pipeline("walk")
    bids = pipeline.read("bids", pen.nexmark(events, kind="bids"), event_time="date_time")
    (
        bids.filter(pl.col("price") >= 1_000)
        .key_by("auction")
        .window("per-auction", pen.tumbling("1s"))
        .aggregate(bids=pen.count())
        .write("counts", pen.files(str(folder / "counts")))
    )
    found = Walk()
    # From the start: threads that were started before the epoch belong to it too.
    threading.setprofile(found.note_call)
    sys.setprofile(found.note_call)
    try:
        pipeline.run_in_process(str(folder / "checkpoints"), on_status=found.note_status)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def main() -> None:
    source = Path(sys.argv[1]).resolve()
    if PACKAGE.parent != source:
        raise SystemExit(f"house: penstock comes from {PACKAGE.parent}, not from {source}")
    walks = {}
    for name, events in EVENTS.items():
        with tempfile.TemporaryDirectory(prefix="house-walk-") as folder:
            walks[name] = walk(events, Path(folder))
    closing, reading = walks["closing"].rows_read, walks["reading"].rows_read
    if len(closing) != 2 or closing[0] != closing[1]:
        raise SystemExit(f"house: the small job should close in epoch 2, rows: {closing}")
    if len(reading) < 3 or not 0 < reading[0] < reading[1] < reading[-1]:
        raise SystemExit(f"house: the large job should read in epoch 2, rows: {reading}")
    print(json.dumps({name: found.steps() for name, found in walks.items()}))


if __name__ == "__main__":
    main()
