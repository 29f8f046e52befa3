"""Where an epoch's time goes: tasks by what they do, the rest by who was at work.

Tasks leave what cProfile saw of them (the setting `profile_root`). Time in libraries is
given to whoever of Penstock called them. What is left of a Spark job besides its tasks is
the JVM's: planning, scheduling, moving records. What is left of an epoch is the driver's.
"""

import pstats
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.suites import Row

_ROUNDS = 30
"""Library functions call each other; so often is their time passed on to who called them."""
_PARTS = (
    ("penstock/connectors/", "decode_and_sink"),
    ("penstock/operators/", "compute"),
    ("penstock/state/tables/", "state"),
    ("penstock/state/", "checkpoint"),
    ("penstock/runtime/", "exchange"),
    ("penstock/", "compute"),
    ("benchmarks/", "compute"),
)


def split_epochs(folder: Path, epoch_millis: list[float], job_millis: list[float]) -> Row:
    """Return the mean milliseconds of an epoch by part; the first third of the tasks is left out."""
    epochs, jobs = _mean(epoch_millis), _mean(job_millis)
    parts: dict[str, float] = defaultdict(float)
    in_tasks = 0.0
    for level in sorted({path.name.rsplit("-", 1)[0] for path in folder.glob("*.prof")}):
        paths = sorted(
            folder.glob(f"{level}-*.prof"), key=lambda path: path.stat().st_mtime
        )
        settled = paths[len(paths) // 3 :]
        stats: Any = pstats.Stats(*map(str, settled))
        in_tasks += stats.total_tt / len(settled) * 1e3
        for part, seconds in _by_part(stats.stats).items():
            parts[part] += seconds / len(settled) * 1e3
    return {
        "epoch_millis": round(epochs, 1),
        "driver_millis": round(epochs - jobs, 1),
        "jvm_millis": round(jobs - in_tasks, 1),
        **{f"{part}_millis": round(value, 1) for part, value in sorted(parts.items())},
    }


def _by_part(stats: dict[Any, Any]) -> dict[str, float]:
    """Give every function's own time to a part; libraries' time goes to their callers first."""
    waiting = {function: entry[2] for function, entry in stats.items()}
    parts: dict[str, float] = defaultdict(float)
    for _ in range(_ROUNDS):
        passed_on: dict[Any, float] = defaultdict(float)
        for function, seconds in waiting.items():
            part = _part_of(function[0])
            callers = stats[function][4]
            if part is not None:
                parts[part] += seconds
            elif callers:
                total = sum(entry[3] for entry in callers.values()) or 1.0
                for caller, entry in callers.items():
                    passed_on[caller] += seconds * entry[3] / total
            else:
                parts["other"] += seconds
        waiting = dict(passed_on)
    parts["other"] += sum(waiting.values())
    return parts


def _part_of(path: str) -> str | None:
    return next((part for prefix, part in _PARTS if prefix in path), None)


def _mean(values: list[float]) -> float:
    """Return the mean without the first third; 0 if a warm-up had one epoch alone."""
    settled = values[len(values) // 3 :]
    return sum(settled) / max(len(settled), 1)
