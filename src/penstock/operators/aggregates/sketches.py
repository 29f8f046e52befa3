"""The aggregates approx_distinct and approx_quantile: bounded state, and a bounded error.

The estimate of the same rows is always the same, however they were cut into epochs and splits:
what is kept is a function of the rows, and merging never draws lots.

`approx_distinct` keeps the `k` least hashes of values (a KMV sketch). Hashes are spread evenly, so
the greatest of the least `k` tells how many there are. Fewer than `k` values are counted exactly.

`approx_quantile` counts values by buckets whose bounds grow by a factor (a DDSketch): bucket i
holds the values in (g**(i-1), g**i] with g = (1 + error) / (1 - error), so its middle is within
the relative error of all of them. Values within 2**-64 of zero are zero, those beyond 2**127
share a bucket, and so there are at most 265 / error buckets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.key_hash import hash_keys_uncut
from penstock.core.schema import StreamSchema
from penstock.operators.aggregates.aggregate import (
    ColumnAggregate,
    is_number,
    is_orderable,
)
from penstock.operators.aggregates.kept import ROW, find_share_problems, fold, unfold

_HASHES = 2.0**64
_LEAST, _GREATEST = 2.0**-64, 2.0**127
_BEYOND, _NAN = 1 << 19, (1 << 19) + 1
"""The buckets of what is beyond the greatest value, and of NaN."""
_BUCKETS = pl.List(pl.Struct({"bucket": pl.Int32, "count": pl.Int64}))
_KEYS_PER_ROW = 1 << 21


def hash_of(values: pl.Expr) -> pl.Expr:
    """Return the hashes of values, or of the fields of structs together; null for nulls.

    They are those of keys: never another one, on any machine and with any version.
    """
    hashes = values.map_batches(_hash, return_dtype=pl.UInt64(), is_elementwise=True)
    return pl.when(values.is_not_null()).then(hashes)


def _hash(values: pl.Series) -> pl.Series:
    columns = values.struct.unnest() if isinstance(values.dtype, pl.Struct) else [values]
    hashes = hash_keys_uncut([column.to_arrow() for column in columns])
    return pl.Series(values.name, hashes)


def find_error_problems(error: object, least: float) -> list[str]:
    """Return why something is no error that can be kept to."""
    if isinstance(error, float) and least <= error <= 0.5:
        return []
    return [f"error must be a number from {least} to 0.5, not {error!r}"]


@dataclass(frozen=True, eq=False)
class ApproxDistinct(ColumnAggregate):
    """About how many different values a column has; exact if they are few."""

    function: ClassVar[str] = "approx_distinct"
    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    error: float = 0.02
    """The standard deviation of the estimate, relative to the number of values."""

    @override
    def find_problems(self) -> list[str]:
        return find_error_problems(self.error, 0.005)

    @override
    def arguments(self) -> str:
        return f"{self.column}, error={self.error}"

    @property
    def most_kept(self) -> int:
        """How many hashes are kept: the error falls with their square root."""
        return math.ceil(1 / self.error**2) + 2

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"hashes": hash_of(self.values()).drop_nulls().unique()}

    @override
    def merge(self, hashes: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"hashes": hashes.explode().unique()}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"hashes": computed["hashes"].list.sort().list.head(self.most_kept)}

    @override
    def final(self, hashes: pl.Expr) -> pl.Expr:
        count = hashes.list.len().cast(pl.Int64)
        share = (hashes.list.last().cast(pl.Float64) + 1) / _HASHES
        estimate = ((self.most_kept - 1) / share).round().cast(pl.Int64, strict=False)
        return pl.when(count < self.most_kept).then(count).otherwise(estimate)


@dataclass(frozen=True, eq=False)
class ApproxQuantile(ColumnAggregate):
    """A value close to the one below which a share of the values lie.

    It is within the relative error of the value at place `q * (count - 1)`, rounded down.
    """

    function: ClassVar[str] = "approx_quantile"
    wanted: ClassVar[str] = "numbers"
    fits = staticmethod(is_number)

    shares: float | tuple[float, ...] = 0.5
    """One share gives a number, several a list of numbers."""
    error: float = 0.01

    @override
    def find_problems(self) -> list[str]:
        return [*find_share_problems(self.shares), *find_error_problems(self.error, 0.001)]

    @override
    def arguments(self) -> str:
        return f"{self.column}, {self.shares}, error={self.error}"

    @property
    def _width(self) -> float:
        """The logarithm of the factor between the bounds of a bucket."""
        return math.log((1 + self.error) / (1 - self.error))

    @property
    def _offset(self) -> int:
        """What makes the numbers of buckets positive: those of negative values are negative."""
        return 1 - math.floor(math.log(_LEAST) / self._width)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values().cast(pl.Float64)
        counted = pl.struct(
            self._bucket_of(values).alias("bucket"), pl.lit(1, pl.Int64).alias("count")
        )
        return {
            "buckets": counted.filter(values.is_not_null()),
            "low": values.min(),
            "high": values.max(),
        }

    @override
    def merge(self, buckets: pl.Expr, low: pl.Expr, high: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"buckets": buckets.explode(), "low": low.min(), "high": high.max()}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr]:
        """Add up the counts of each bucket, of all groups at once."""
        added = computed["buckets"].map_batches(
            _add_up, return_dtype=_BUCKETS, is_elementwise=True
        )
        return {**computed, "buckets": added}

    @override
    def final(self, buckets: pl.Expr, low: pl.Expr, high: pl.Expr) -> pl.Expr:
        if isinstance(self.shares, tuple):
            found = [self._at(share, buckets, low, high) for share in self.shares]
            return pl.when(buckets.list.len() > 0).then(pl.concat_list(found))
        return self._at(self.shares, buckets, low, high)

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType | None:
        return pa.list_(pa.float64()) if isinstance(self.shares, tuple) else None

    def _bucket_of(self, values: pl.Expr) -> pl.Expr:
        size = values.abs()
        bucket = (size.log() / self._width).ceil() + self._offset
        return (
            pl.when(values.is_nan())
            .then(_NAN)
            .when(size < _LEAST)
            .then(0)
            .when(size > _GREATEST)
            .then(values.sign() * _BEYOND)
            .otherwise(values.sign() * bucket)
            .cast(pl.Int32)
        )

    def _at(self, share: float, buckets: pl.Expr, low: pl.Expr, high: pl.Expr) -> pl.Expr:
        """Return the middle of the bucket at a place; never beyond the extremes, which are exact."""
        count = pl.element().struct.field("count")
        is_before = count.cum_sum() <= ((count.sum() - 1) * share).floor()
        place = buckets.list.eval(is_before.sum()).list.first()
        bucket = buckets.list.get(place, null_on_oob=True).struct.field("bucket")
        exponent = (bucket.abs() - self._offset).cast(pl.Float64) * self._width
        middle = exponent.exp() * (1 - self.error)  # g**i * 2 / (g + 1)
        value = (
            pl.when(bucket == 0)
            .then(0.0)
            .when(bucket.abs() == _BEYOND)
            .then(bucket.sign() * math.inf)
            .otherwise(bucket.sign() * middle)
        )
        return pl.when(bucket == _NAN).then(math.nan).otherwise(value.clip(low, high))


def _add_up(lists: pl.Series) -> pl.Series:
    frame = unfold(lists)
    # Grouping by one number is several times as fast as by two.
    key: Any = pl.col(ROW) * _KEYS_PER_ROW + pl.col("bucket") + _KEYS_PER_ROW // 2
    counts = frame.group_by(key.alias("key")).agg(pl.col("count").sum()).sort("key")
    added = counts.select(
        (pl.col("key") // _KEYS_PER_ROW).alias(ROW),
        (pl.col("key") % _KEYS_PER_ROW - _KEYS_PER_ROW // 2).alias("bucket"),
        "count",
    )
    return fold(added, len(lists), _BUCKETS).alias(lists.name)


def as_shares(q: float | Sequence[float]) -> float | tuple[float, ...]:
    """Return shares as they are kept: one number, or several that do not change."""
    given: Any = q
    return tuple(given) if isinstance(given, list | tuple) else given
