"""Aggregates with what they come to, computed row by row in plain Python.

Rows have the columns `n`, `short`, `real`, `text`, `price`, `flag` and `at`, all but the last perhaps
without a value. Aggregates whose names end with `_kept` merge groups only, never pairs.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from operator import and_, or_, xor
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

import penstock as pen
from tests.builders.aggregated_rows import Row

Oracle: TypeAlias = Callable[[Sequence[Row]], Any]
FLAGGED = pl.col("flag")


def values_of(rows: Sequence[Row], column: str) -> list[Any]:
    """Return the values of a column that are not null."""
    return [row[column] for row in rows if row[column] is not None]


def ranked(value: Any) -> tuple[bool, Any]:
    """Return what orders values: all NaN are one, and the greatest."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


def flagged(oracle: Oracle) -> Oracle:
    """Return an oracle of the rows whose flag is true."""
    return lambda rows: oracle([row for row in rows if row["flag"]])


def nulls_last(value: Any) -> tuple[bool, Any]:
    """Return what orders values of one type behind which nulls come."""
    return (True, ()) if value is None else (False, value)


def picked(
    rows: Sequence[Row], column: str, order: str, *, is_last: bool, needs_place: bool
) -> Any:
    """Return the value of the first or the last row by an order, then by the value itself."""
    entries = [(row[order], row[column]) for row in rows if row[column] is not None]
    placed = [entry for entry in entries if entry[0] is not None]
    if not placed and not needs_place:
        placed = [(0, value) for _, value in entries]
    pick = max if is_last else min
    found = pick(placed, key=lambda entry: tuple(map(ranked, entry)), default=(None, None))
    return found[1]


def quantile(rows: Sequence[Row], column: str, share: float) -> float | None:
    """Return a quantile, interpolated between its neighbours."""
    values = sorted(map(float, values_of(rows, column)), key=ranked)
    if not values:
        return None
    place = (len(values) - 1) * share
    below, above = values[math.floor(place)], values[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def discrete(rows: Sequence[Row], column: str, share: Fraction) -> Any:
    """Return the least value that a share of the values does not exceed."""
    values = sorted(values_of(rows, column), key=ranked)
    return values[max(math.ceil(share * len(values)), 1) - 1] if values else None


def in_order(rows: Sequence[Row], column: str, order: str) -> list[Any]:
    """Return values by another column, which may be null, and then by themselves."""
    given = [row for row in rows if row[column] is not None]
    given.sort(key=lambda row: (row[order] is None, row[order] or 0, *ranked(row[column])))
    return [row[column] for row in given]


def most_frequent(rows: Sequence[Row], column: str, k: int) -> list[Row]:
    """Return the most frequent values and their counts."""
    counts = Counter(values_of(rows, column))
    top = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return [{"value": value, "count": count} for value, count in top[:k]]


def _variance(rows: Sequence[Row], column: str) -> float | None:
    values = values_of(rows, column)
    if any(math.isnan(value) for value in values):
        return math.nan
    return float(statistics.pvariance(map(Fraction, values))) if values else None


def _deviation(rows: Sequence[Row], column: str) -> float | None:
    variance = _variance(rows, column)
    return None if variance is None else math.sqrt(variance)


def _bits(operator: Callable[[int, int], int]) -> Oracle:
    return lambda rows: (
        reduce(operator, values_of(rows, "short")) if values_of(rows, "short") else None
    )


def _truth(combine: Callable[[list[bool]], bool]) -> Oracle:
    return lambda rows: (
        combine(values_of(rows, "flag")) if values_of(rows, "flag") else None
    )


def span(rows: pl.DataFrame) -> str:
    """Return something that depends on every row and on their order."""
    return "|".join(f"{n}{text}" for n, text in rows.rows())


def _span(rows: Sequence[Row]) -> str | None:
    given = sorted(
        rows,
        key=lambda row: [
            row["at"],
            *(o for c in ("n", "text") for o in nulls_last(row[c])),
        ],
    )
    return "|".join(f"{row['n']}{row['text']}" for row in given) if given else None


MORE_CASES: Mapping[str, tuple[pen.Aggregate, Oracle]] = {
    "all_flags": (pen.bool_and("flag"), _truth(all)),
    "any_flag": (pen.bool_or("flag"), _truth(any)),
    "bits_and": (pen.bit_and("short"), _bits(and_)),
    "bits_or": (pen.bit_or("short"), _bits(or_)),
    "bits_xor": (pen.bit_xor("short", where=FLAGGED), flagged(_bits(xor))),
    "real_var_pop": (pen.var_pop("real"), lambda rows: _variance(rows, "real")),
    "short_stddev_pop": (pen.stddev_pop("short"), lambda rows: _deviation(rows, "short")),
    "arg_min_kept": (
        pen.arg_min("text", "real"),
        lambda rows: picked(rows, "text", "real", is_last=False, needs_place=True),
    ),
    "arg_max_kept": (
        pen.arg_max("text", "real", where=FLAGGED),
        flagged(lambda rows: picked(rows, "text", "real", is_last=True, needs_place=True)),
    ),
    "first_by_kept": (
        pen.first("real", order_by="short"),
        lambda rows: picked(rows, "real", "short", is_last=False, needs_place=False),
    ),
    "last_by_kept": (
        pen.last("n", order_by="real"),
        lambda rows: picked(rows, "n", "real", is_last=True, needs_place=False),
    ),
    "median_kept": (pen.median("real"), lambda rows: quantile(rows, "real", 0.5)),
    "quantile_kept": (
        pen.quantile("price", 0.3, where=FLAGGED),
        flagged(lambda rows: quantile(rows, "price", 0.3)),
    ),
    "discrete_kept": (
        pen.quantile("text", 0.7, discrete=True),
        lambda rows: discrete(rows, "text", Fraction(7, 10)),
    ),
    "list_kept": (
        pen.collect_list("text", limit=4),
        lambda rows: in_order(rows, "text", "at")[:4],
    ),
    "list_by_kept": (
        pen.collect_list("n", order_by="short", where=FLAGGED),
        flagged(lambda rows: in_order(rows, "n", "short")),
    ),
    "set_kept": (
        pen.collect_set("short", limit=3),
        lambda rows: sorted(set(values_of(rows, "short")))[:3],
    ),
    "joined_kept": (
        pen.string_agg("text", "/", limit=5),
        lambda rows: (
            "/".join(in_order(rows, "text", "at")[:5]) if values_of(rows, "text") else None
        ),
    ),
    "about_distinct_kept": (
        pen.approx_distinct("real"),
        lambda rows: len(set(map(ranked, values_of(rows, "real")))),
    ),
    "top_kept": (
        pen.approx_top_k("text", 2),
        lambda rows: most_frequent(rows, "text", 2),
    ),
    "function_kept": (
        pen.aggregate_rows(span, returns=pa.string(), columns=["n", "text"]),
        _span,
    ),
}
"""Aggregates whose results are exact on few rows."""

SKETCHES: Mapping[str, pen.Aggregate] = {
    "distinct": pen.approx_distinct("n", error=0.5),
    "quantile": pen.approx_quantile("real", [0.0, 0.3, 1.0], error=0.3),
    "short_quantile": pen.approx_quantile("short", 0.5, error=0.5, where=FLAGGED),
    "top": pen.approx_top_k("n", 3, error=0.5),
    "top_by": pen.approx_top_k("real", 2, error=0.5, by="short"),
}
"""Estimates that are coarse enough to be wrong on few rows."""

PAIR_STATISTICS = (
    *("corr", "covar_pop", "covar_samp", "regr_count", "regr_avgx", "regr_avgy"),
    *("regr_sxx", "regr_syy", "regr_sxy", "regr_slope", "regr_intercept", "regr_r2"),
)


def pair_statistics(rows: Sequence[Row], y: str, x: str) -> Row:
    """Return all statistics of the pairs of two columns, exactly until the last step."""
    pairs = [(row[x], row[y]) for row in rows if row[x] is not None and row[y] is not None]
    n, found = len(pairs), dict.fromkeys(PAIR_STATISTICS)
    found["regr_count"] = n
    if not n:
        return found
    xs, ys = ([Fraction(pair[side]) for pair in pairs] for side in (0, 1))
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    sxx = sum((value - mean_x) ** 2 for value in xs)
    syy = sum((value - mean_y) ** 2 for value in ys)
    sxy = sum((a - mean_x) * (b - mean_y) for a, b in zip(xs, ys, strict=True))
    exact: dict[str, Any] = {
        "covar_pop": sxy / n,
        "covar_samp": sxy / (n - 1) if n > 1 else None,
        "regr_avgx": mean_x,
        "regr_avgy": mean_y,
        "regr_sxx": sxx,
        "regr_syy": syy,
        "regr_sxy": sxy,
    }
    if sxx:
        exact["regr_slope"] = sxy / sxx
        exact["regr_intercept"] = mean_y - sxy / sxx * mean_x
        exact["regr_r2"] = sxy**2 / (sxx * syy) if syy else 1
        if syy:
            exact["corr"] = float(sxy) / math.sqrt(sxx) / math.sqrt(syy)
    return found | {n: None if v is None else float(v) for n, v in exact.items()}
