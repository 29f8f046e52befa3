"""What users write about event time: its column or expression in `read`, and the step `watermark`.

    p.read("clicks", source, event_time=pl.from_epoch("ms", time_unit="ms"))
    clicks.watermark("sent", "sent_at", delay="5s", partition_column="device")

Both make watermarks. That of `read` follows the splits of the source; that of the step follows
the rows of each subtask, or of each value of a column.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl

from penstock.api.gathering import Problems, step
from penstock.api.graph_builder import BrokenPort
from penstock.core.clock import DurationLike, to_micros
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import WatermarkSpec
from penstock.operators.event_time import WatermarkConfig

if TYPE_CHECKING:
    from penstock.api.stream import Stream


def to_watermark_spec(
    problems: Problems, delay: DurationLike | None, idle_timeout: DurationLike | None
) -> WatermarkSpec | None:
    """Return the watermark that `read` is asked for; None if nothing was said about it."""
    if delay is None and idle_timeout is None:
        return None
    delay_micros, idle_micros = 0, None
    if delay is not None:
        with problems.noting():
            delay_micros = to_micros(delay, "watermark_delay")
    if idle_timeout is not None:
        with problems.noting():
            idle_micros = to_micros(idle_timeout, "idle timeout")
    return WatermarkSpec(delay_micros, idle_micros)


def to_event_time(operator: str, given: object) -> str | pl.Expr | None:
    """Return the column or the expression of an event time; None if none was given.

    An expression that is no more than a column's name is that column.
    """
    if isinstance(given, pl.Expr):
        meta = given.meta
        is_column = meta.is_column_selection() and not meta.has_multiple_outputs()
        return meta.output_name() if is_column else given
    if given is None or isinstance(given, str):
        return given
    raise UserError(
        f"operator {operator!r}: event_time {given!r} is neither the name of a column nor a "
        "Polars expression",
        code=ErrorCode.INVALID_CONFIG,
        operator=operator,
    )


class EventTimeSteps:
    """The part of `Stream` that is about event time."""

    process: "Callable[..., Stream]"
    """Adds an operator behind the stream; `Stream` has it."""

    @step(lambda stream: type(stream)(stream.builder, BrokenPort()), is_named=True)
    def watermark(
        self,
        name: str,
        column: str,
        *,
        delay: DurationLike = 0,
        idle_timeout: DurationLike | None = None,
        partition_column: str | None = None,
    ) -> "Stream":
        """Make a timestamp column the event time, and its rows the source of the watermark.

        A row may be up to `delay` behind the latest one, or, with `partition_column`, behind
        the latest one with the same value there: such as a device, whose own rows are in
        order. The slowest one tells the time, unless it had no rows for `idle_timeout`. An
        event time that the stream has already is replaced. The step keeps state under its
        name.

        >>> import datetime as dt, penstock as pen
        >>> rows = pen.list_source([{"at": dt.datetime(2024, 1, 1), "device": 7}])
        >>> clicks = pen.Pipeline("p").read("clicks", rows)
        >>> timed = clicks.watermark("time", "at", delay="5s", partition_column="device")
        >>> timed.schema.time_column
        'at'
        """
        wanted: dict[str, object] = {"column": column}
        if partition_column is not None:
            wanted["partition_column"] = partition_column
        for role, given in wanted.items():
            if not isinstance(given, str):
                raise UserError(
                    f"watermark {name!r} takes the name of a column as {role}, not {given!r}: "
                    "compute it with with_columns before",
                    code=ErrorCode.INVALID_CONFIG,
                    operator=name,
                )
        idle = None if idle_timeout is None else to_micros(idle_timeout, "idle_timeout")
        if idle == 0:
            raise UserError(
                f"watermark {name!r}: 'idle_timeout' must be positive, or None for never",
                code=ErrorCode.INVALID_NUMBER,
                operator=name,
            )
        spec = WatermarkConfig(
            delay_micros=to_micros(delay, "delay"),
            idle_timeout_micros=idle,
            partition_column=partition_column,
            time_column=column,
        )
        return self.process(name, spec.to_operator_spec())
