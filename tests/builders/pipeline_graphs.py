"""Small pipelines that together use every kind of edge, state, clock and output.

    counting     read ─key─ count ─ out
    windows      read-a, read-b ─ union ─key─ windows ─ out | bad | late
    levels       read ─key─ count ─rebalance─ announce ─ stamp ─key─ again ─ out
                  └───────── skips a level ─────────────┘ (by key, to the side)
                 news ─broadcast─ announce
    reminders    paced source ─key─ remind ─ out

Each comes with the output it must have, whatever happened on the way.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.graph.logical import BAD, LATE, LogicalGraph
from tests.builders.pipeline_operators import (
    LATE_BY_MICROS,
    ROWS,
    SECOND,
    WINDOW_MICROS,
    Announce,
    BookSink,
    PacedSource,
    Remind,
    RunningCount,
    Stamp,
    WindowCount,
)

Row: TypeAlias = dict[str, Any]
Output: TypeAlias = dict[str, list[Row]]
"""The rows of every sink, sorted."""

JOB = "pipeline"
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MICROS = int(START.timestamp()) * SECOND


def some_rows(count: int, *, users: int = 4, bad_every: int = 0) -> list[Row]:
    """Rows a second apart; every so many is a bad one."""
    return [
        {
            "user": f"u{number * 7 % users}",
            "number": -number if bad_every and number % bad_every == 0 else number,
            "at": START + timedelta(seconds=number),
        }
        for number in range(1, count + 1)
    ]


@dataclass(frozen=True, eq=False)
class Shape:
    """A pipeline that can be built at any parallelism, and what comes out of it."""

    name: str
    build: Callable[[str, Sequence[int]], LogicalGraph]
    """From the book of its sinks and the parallelisms to use in turn."""
    expected: Output

    def graph(self, book: str, parallelism: Sequence[int] = (2, 3, 1)) -> LogicalGraph:
        return self.build(book, parallelism)


def _sorted(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return sorted(map(dict, rows), key=repr)


def _running(users: Sequence[str]) -> list[Row]:
    totals = Counter(users)
    return _sorted(
        [
            {"user": user, "count": count}
            for user, total in totals.items()
            for count in range(1, total + 1)
        ]
    )


def counting(row_count: int = 14) -> Shape:
    rows = some_rows(row_count)

    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        first, second, third = parallelism
        p = Pipeline(JOB, parallelism=first)
        read = p.read("read", list_source(rows, ROWS, splits=3, batch_rows=2))
        counted = read.key_by("user").process("count", RunningCount(), parallelism=second)
        counted.write("out", BookSink(book), parallelism=third)
        return p.graph()

    return Shape("counting", build, {"out": _running([row["user"] for row in rows])})


def _instant(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / SECOND, UTC).replace(tzinfo=None)


def windows(row_count: int = 24) -> Shape:
    rows = some_rows(row_count, users=3, bad_every=5)
    other = some_rows(row_count // 2, users=2)
    good = [row for row in (*rows, *other) if row["number"] >= 0]
    counts = Counter(
        (row["user"], int(row["at"].timestamp()) * SECOND // WINDOW_MICROS) for row in good
    )
    panes = [
        {"user": user, "end": _instant((window + 1) * WINDOW_MICROS), "count": count}
        for (user, window), count in counts.items()
    ]
    bad = [row for row in rows if row["number"] < 0]

    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        first, second, third = parallelism
        p = Pipeline(JOB, parallelism=first)
        a = p.read("read-a", list_source(rows, ROWS, splits=3), event_time="at")
        b = p.read("read-b", list_source(other, ROWS), event_time="at", parallelism=1)
        out = (
            a.union(b).key_by("user").process("windows", WindowCount(), parallelism=second)
        )
        out.write("out", BookSink(book), parallelism=third)
        out.side_output(BAD).write("bad", BookSink(book))
        out.side_output(LATE).write("late", BookSink(book))
        return p.graph()

    return Shape("windows", build, {"bad": _sorted(bad), "out": _sorted(panes)})


def levels(row_count: int = 12) -> Shape:
    rows = some_rows(row_count)
    news = some_rows(3, users=2)
    users = [row["user"] for row in rows]
    announced = [f"all-{row['user']}" for row in news]
    expected = {
        "out": _running([*users, *announced, *users]),
        "copy": _sorted([{"user": u, "count": n} for u, n in _copied(users, news)]),
    }

    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        first, second, third = parallelism
        p = Pipeline(JOB, parallelism=first)
        read = p.read("read", list_source(rows, ROWS, splits=3, batch_rows=2))
        newly = p.read("news", list_source(news, ROWS, batch_rows=1), parallelism=1)
        counted = read.key_by("user").process("count", RunningCount(), parallelism=second)
        told = counted.rebalance(parallelism=third).process(
            "announce", Announce(), newly.broadcast()
        )
        stamped = told.process("stamp", Stamp())
        again = stamped.key_by("user").process(
            "again", RunningCount(), read.key_by("user"), parallelism=second
        )
        again.write("out", BookSink(book))
        stamped.rebalance(parallelism=first).process("copied", Stamp()).write(
            "copy", BookSink(book)
        )
        return p.graph()

    return Shape("levels", build, expected)


def _copied(users: Sequence[str], news: Sequence[Row]) -> list[tuple[str, int]]:
    counted = [(row["user"], row["count"]) for row in _running(users)]
    return counted + [(f"all-{row['user']}", row["number"]) for row in news]


def reminders(row_count: int = 5) -> Shape:
    source = PacedSource(row_count, start_micros=START_MICROS)
    rows = source.rows()
    expected = [
        {"user": row["user"], "due": row["at"] + delay, "number": number}
        for row in rows
        for number, delay in enumerate((0, LATE_BY_MICROS))
    ]

    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        first, second, third = parallelism
        p = Pipeline(JOB, parallelism=first)
        read = p.read("read", source)
        reminded = read.key_by("user").process("remind", Remind(), parallelism=second)
        reminded.write("out", BookSink(book), parallelism=third)
        return p.graph()

    return Shape("reminders", build, {"out": _sorted(expected)})


SHAPES = (counting(10), windows(16), levels(9), reminders(4))
