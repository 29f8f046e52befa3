"""Joins as plain models and as SQL, and small jobs whose results are compared with them."""

# ruff: noqa: S608 (queries are made of the numbers and words of tests)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa

import penstock as pen
from penstock.core.clock import new_token
from penstock.core.watermark import MAX_MICROS
from tests.unit.state.files.file_builders import a_schema

Row: TypeAlias = Mapping[str, Any]
"""Of `key`, `at` in seconds, `n`, and `text`; each may be null but `at` and `n`."""
Result: TypeAlias = tuple[Any, ...]
"""The `n` of the left row, that of the right row, and instants of the join, in seconds."""

SECOND = 1_000_000
HOWS = ("inner", "left", "right", "full", "semi", "anti")
LEFT = a_schema(key=pa.int64(), text=pa.string(), at=pa.timestamp("us"), n=pa.int64())
RIGHT = a_schema(
    id=pa.int64(), text=pa.large_string(), seen=pa.timestamp("us"), n=pa.int64()
)
BOTH_KEYS = {"left_on": ["key", "text"], "right_on": ["id", "text"]}
WHERE = pl.col("n") + pl.col("n_right") > 3


def left_row(row: Row) -> dict[str, Any]:
    """Return a row as the left stream has it."""
    return {**row, "at": row["at"] * SECOND}


def right_row(row: Row) -> dict[str, Any]:
    """Return a row as the right stream has it."""
    return {
        "id": row["key"],
        "text": row["text"],
        "seen": row["at"] * SECOND,
        "n": row["n"],
    }


class JoinJob:
    """A pipeline that joins two lists, its results in lists of its own."""

    def __init__(
        self,
        left: Sequence[Row],
        right: Sequence[Row],
        *,
        watermark_delay: str = "0s",
        parallelism: int = 1,
        splits: int = 1,
        **options: Any,
    ) -> None:
        self.pipeline = pen.Pipeline("joins", parallelism=parallelism)
        lefts = pen.list_source(list(map(left_row, left)), LEFT, splits=splits)
        rights = pen.list_source(list(map(right_row, right)), RIGHT, splits=splits)
        read = self.pipeline.read
        delay = watermark_delay
        self.left = read("left", lefts, event_time="at", watermark_delay=delay)
        self.right = read("right", rights, event_time="seen", watermark_delay=delay)
        self.joined = self.left.join("join", self.right, **{**BOTH_KEYS, **options})
        token = new_token()
        self.out = pen.list_sink(f"joined-{token}")
        self.late = pen.list_sink(f"late-{token}")
        self.late_right = pen.list_sink(f"late-right-{token}")
        self.joined.write("out", self.out)
        self.joined.side_output(pen.LATE).write("late", self.late)
        self.joined.side_output(pen.LATE_RIGHT).write("late-right", self.late_right)

    def found(self) -> list[Result]:
        """Return the results so far, sorted."""
        return in_order(result_of(row) for row in self.out.rows())


def result_of(row: Mapping[str, Any]) -> Result:
    """Return an emitted row as the models and SQL have it."""
    times = [
        _seconds(row[name])
        for name in ("event_time", "window_start", "window_end")
        if name in row
    ]
    return (row["n"], row.get("n_right"), *times)


def _seconds(instant: datetime) -> int:
    return int(instant.replace(tzinfo=UTC).timestamp())


def in_order(results: Any) -> list[Result]:
    """Return results sorted, nulls first."""
    return sorted(results, key=lambda one: [(value is not None, value) for value in one])


# ---- SQL


_SIDES = """
    l AS (SELECT *, row_number() OVER () AS r FROM lefts),
    r AS (SELECT *, row_number() OVER () AS r FROM rights)
"""
_COLUMNS = a_schema(key=pa.int64(), text=pa.string(), t=pa.int64(), n=pa.int64())


def run_sql(query: str, left: Sequence[Row], right: Sequence[Row]) -> list[Result]:
    """Return what DuckDB makes of both sides, which are called `l` and `r`."""
    connection = duckdb.connect()
    connection.register("lefts", _table(left))
    connection.register("rights", _table(right))
    return in_order(connection.execute(f"WITH {_SIDES} {query}").fetchall())


def _table(rows: Sequence[Row]) -> pa.Table:
    named = [{**row, "t": row["at"]} for row in rows]
    return pa.Table.from_pylist(named, _COLUMNS)


def interval_sql(
    how: str, lower: int, upper: int, *, where: bool, outputs: bool = True
) -> str:
    """Return the interval join as SQL; `lower` and `upper` are in seconds."""
    del outputs
    condition = (
        "l.key = r.key AND l.text = r.text "
        f"AND r.t - l.t BETWEEN {lower} AND {upper}"
        + (" AND l.n + r.n > 3" if where else "")
    )
    if how in ("semi", "anti"):
        negated = "NOT" if how == "anti" else ""
        return f"SELECT n, NULL FROM l WHERE {negated} EXISTS (SELECT 1 FROM r WHERE {condition})"
    return f"SELECT l.n, r.n, greatest(l.t, r.t) FROM l {how} JOIN r ON {condition}"


def window_sql(how: str, width: int, slide: int, *, where: bool) -> str:
    """Return the join in windows as SQL: each row is in all windows that hold it."""
    starts = f"SELECT *, unnest(range((floor(t / {slide}) * {slide})::BIGINT, (t - {width})::BIGINT, -{slide})) AS w"
    return f", lw AS ({starts} FROM l), rw AS ({starts} FROM r) " + _by_window(
        how, "lw", "rw", f"{width}", where=where
    )


def same_window_sql(how: str, width: int, slide: int) -> str:
    """Return counts by key and window of both sides, joined by both."""
    counts = (
        "SELECT key, w, count(*) AS c FROM (SELECT *, unnest(range((floor(t / {s}) * {s})"
        "::BIGINT, (t - {w})::BIGINT, -{s})) AS w FROM {side}) GROUP BY key, w"
    )
    left, right = (counts.format(s=slide, w=width, side=side) for side in "lr")
    if how in ("semi", "anti"):
        negated = "NOT" if how == "anti" else ""
        return (
            f", lc AS ({left}), rc AS ({right}) SELECT key, c, NULL, w, w + {width} FROM lc WHERE "
            f"{negated} EXISTS (SELECT 1 FROM rc WHERE lc.key = rc.key AND lc.w = rc.w)"
        )
    return (
        f", lc AS ({left}), rc AS ({right}) SELECT coalesce(lc.key, rc.key), lc.c, rc.c, "
        f"coalesce(lc.w, rc.w), coalesce(lc.w, rc.w) + {width} "
        f"FROM lc {how} JOIN rc ON lc.key = rc.key AND lc.w = rc.w"
    )


def session_sql(how: str, gap: int, *, where: bool) -> str:
    """Return the join in sessions as SQL: they are cut over the rows of both sides."""
    return f"""
    , both_sides AS (
        SELECT 0 AS side, r, key, text, t, n FROM l
        UNION ALL SELECT 1, r, key, text, t, n FROM r
    ), keyed AS (
        SELECT *, CASE WHEN key IS NULL OR text IS NULL THEN side END AS apart FROM both_sides
    ), marked AS (
        SELECT *, coalesce(t - lag(t) OVER k > {gap}, true) AS is_first FROM keyed
        WINDOW k AS (PARTITION BY key, text, apart ORDER BY t, side, r)
    ), numbered AS (
        SELECT *, sum(is_first::INT) OVER (
            PARTITION BY key, text, apart ORDER BY t, side, r
            ROWS UNBOUNDED PRECEDING
        ) AS number FROM marked
    ), placed AS (
        SELECT *, min(t) OVER s AS w, max(t) OVER s + {gap} AS e FROM numbered
        WINDOW s AS (PARTITION BY key, text, apart, number)
    ), lw AS (SELECT * FROM placed WHERE side = 0), rw AS (SELECT * FROM placed WHERE side = 1)
    """ + _by_window(how, "lw", "rw", None, where=where)


def _by_window(how: str, left: str, right: str, width: str | None, *, where: bool) -> str:
    condition = "l.key = r.key AND l.text = r.text AND l.w = r.w" + (
        " AND l.n + r.n > 3" if where else ""
    )
    end = "coalesce(l.e, r.e)" if width is None else f"coalesce(l.w, r.w) + {width}"
    if how in ("semi", "anti"):
        negated = "NOT" if how == "anti" else ""
        own = "l.e" if width is None else f"l.w + {width}"
        return (
            f"SELECT l.n, NULL, l.w, {own} FROM {left} l WHERE {negated} EXISTS "
            f"(SELECT 1 FROM {right} r WHERE {condition})"
        )
    return (
        f"SELECT l.n, r.n, coalesce(l.w, r.w), {end} "
        f"FROM {left} l {how} JOIN {right} r ON {condition}"
    )


# ---- models


def are_equal(left: Row, right: Row, *, where: bool = False) -> bool:
    """Tell whether two rows have the same keys, none of them null, and fulfil the predicate."""
    keys = (left["key"], left["text"])
    if None in keys or keys != (right["key"], right["text"]):
        return False
    return not where or left["n"] + right["n"] > 3


@dataclass
class _Kept:
    row: Row
    is_emitted: bool = False
    """As a row without a match, or by a semi join."""
    is_matched: bool = False


@dataclass
class IntervalModel:
    """What an interval join should do, epoch by epoch. It keeps every row for ever."""

    how: str
    lower: int
    upper: int
    where: bool = False
    watermark: int | None = None
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    _sides: tuple[list[_Kept], list[_Kept]] = field(default_factory=lambda: ([], []))

    def run_epoch(
        self, left: Sequence[Row], right: Sequence[Row], watermark: int | None
    ) -> list[Result]:
        """Take an epoch's rows, then its watermark; return what is emitted, sorted."""
        fresh: list[list[_Kept]] = []
        for side, rows in enumerate((left, right)):
            reached = self.watermark
            on_time = [r for r in rows if reached is None or r["at"] >= reached]
            self.late[side].extend(r for r in rows if r not in on_time)
            fresh.append([_Kept(row) for row in on_time])
        if watermark is not None:
            self.watermark = max(watermark, self.watermark or watermark)
        emitted: list[Result] = []
        old_left, old_right = (list(side) for side in self._sides)
        for one in (*old_left, *fresh[0]):
            partners = fresh[1] if one in old_left else [*old_right, *fresh[1]]
            for other in partners:
                if self._match(one.row, other.row):
                    one.is_matched = other.is_matched = True
                    emitted += self._pair(one, other)
        for side in (0, 1):
            self._sides[side].extend(fresh[side])
        return in_order([*emitted, *self._alone()])

    def _match(self, left: Row, right: Row) -> bool:
        distance = right["at"] - left["at"]
        is_near = self.lower <= distance <= self.upper
        return is_near and are_equal(left, right, where=self.where)

    def _pair(self, left: _Kept, right: _Kept) -> list[Result]:
        one, other = left.row, right.row
        if self.how == "semi":
            is_first, left.is_emitted = not left.is_emitted, True
            return [(one["n"], None)] if is_first else []
        if self.how == "anti":
            return []
        return [(one["n"], other["n"], max(one["at"], other["at"]))]

    def _alone(self) -> list[Result]:
        found: list[Result] = []
        if self.watermark is None:
            return found
        waits = (("left", "full", "anti"), self.upper), (("right", "full"), -self.lower)
        for side, (hows, wait) in enumerate(waits):
            for kept in self._sides[side]:
                is_due = kept.row["at"] + wait < self.watermark
                if self.how in hows and is_due and not (kept.is_matched or kept.is_emitted):
                    kept.is_emitted = True
                    n, at = kept.row["n"], kept.row["at"]
                    alone = (n, None, at) if side == 0 else (None, n, at)
                    found.append((n, None) if self.how == "anti" else alone)
        return found

    def end(self) -> list[Result]:
        """Return what is left."""
        return self.run_epoch([], [], MAX_MICROS)


@dataclass
class WindowJoinModel:
    """What a join in tumbling, sliding or session windows should do, epoch by epoch."""

    how: str
    width: int = 0
    slide: int = 0
    gap: int = 0
    where: bool = False
    watermark: int | None = None
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    _open: list[tuple[int, Row]] = field(default_factory=list)
    """The side of each row, and the row."""

    def run_epoch(
        self, left: Sequence[Row], right: Sequence[Row], watermark: int | None
    ) -> list[Result]:
        """Take an epoch's rows, then its watermark; return what is emitted, sorted."""
        previous = self.watermark
        if watermark is not None:
            self.watermark = max(watermark, previous or watermark)
        rows = [*((0, row) for row in left), *((1, row) for row in right)]
        if self.gap:
            return in_order(self._sessions(rows, previous))
        return in_order(self._grid(rows, previous))

    def _grid(self, rows: list[tuple[int, Row]], previous: int | None) -> list[Result]:
        for side, row in rows:
            ends = [start + self.width for start in self._starts(row["at"])]
            if previous is not None and ends and max(ends) <= previous:
                self.late[side].append(row)
            else:
                self._open.append((side, row))
        if self.watermark is None:
            return []
        starts = {s for _, row in self._open for s in self._starts(row["at"])}
        closing = [
            s
            for s in starts
            if s + self.width <= self.watermark
            and (previous is None or s + self.width > previous)
        ]
        found: list[Result] = []
        for start in closing:
            members = [m for m in self._open if start in self._starts(m[1]["at"])]
            found += self._join(members, start, start + self.width)
        return found

    def _starts(self, at: int) -> list[int]:
        first = at // self.slide * self.slide
        return [s for s in range(first - self.width, first + 1) if self._holds(s, at)]

    def _holds(self, start: int, at: int) -> bool:
        return start % self.slide == 0 and start <= at < start + self.width

    def _sessions(self, rows: list[tuple[int, Row]], previous: int | None) -> list[Result]:
        by_key: dict[Any, list[tuple[int, Row]]] = {}
        for side, row in (*self._open, *rows):
            keys = (row["key"], row["text"])
            by_key.setdefault((keys, side if None in keys else 2), []).append((side, row))
        self._open, found = [], []
        for members in by_key.values():
            for session in self._cut(sorted(members, key=lambda one: one[1]["at"])):
                start, end = session[0][1]["at"], session[-1][1]["at"] + self.gap
                if previous is not None and end < previous:
                    for side, row in session:
                        # Rows that no result can hold are dropped as they come, late or not.
                        if None not in (row["key"], row["text"]) or self._emits_alone(side):
                            self.late[side].append(row)
                elif self.watermark is not None and end < self.watermark:
                    found += self._join(session, start, end)
                else:
                    self._open += session
        return found

    def _emits_alone(self, side: int) -> bool:
        return self.how in (("left", "full", "anti"), ("right", "full"))[side]

    def _cut(self, members: list[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
        sessions = [[members[0]]]
        for before, one in pairwise(members):
            if one[1]["at"] - before[1]["at"] > self.gap:
                sessions.append([])
            sessions[-1].append(one)
        return sessions

    def _join(self, members: list[tuple[int, Row]], start: int, end: int) -> list[Result]:
        lefts, rights = ([r for s, r in members if s == side] for side in (0, 1))
        matches = [[are_equal(one, r, where=self.where) for r in rights] for one in lefts]
        pairs = [
            (one["n"], other["n"], start, end)
            for one, row in zip(lefts, matches, strict=True)
            for other, is_match in zip(rights, row, strict=True)
            if is_match
        ]
        with_match = [any(row) for row in matches]
        alone = [
            one["n"] for one, is_in in zip(lefts, with_match, strict=True) if not is_in
        ]
        if self.how == "semi":
            both = zip(lefts, with_match, strict=True)
            return [(one["n"], None, start, end) for one, is_in in both if is_in]
        left_alone = [(n, None, start, end) for n in alone]
        if self.how == "anti":
            return [(n, None, start, end) for n in alone]
        right_alone = [
            (None, other["n"], start, end)
            for at, other in enumerate(rights)
            if not any(row[at] for row in matches)
        ]
        return [
            *pairs,
            *(left_alone if self.how in ("left", "full") else []),
            *(right_alone if self.how in ("right", "full") else []),
        ]

    def end(self) -> list[Result]:
        """Return what is left."""
        return self.run_epoch([], [], MAX_MICROS)
