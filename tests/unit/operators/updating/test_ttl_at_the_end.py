"""What a time to live leaves at the end of data: it follows from the rows, not from who ends last."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.testing import CUT, LocalJob, ScriptedSource
from tests.builders.aggregated_rows import fold

NOON = dt.datetime(2024, 1, 1, 12)  # noqa: DTZ001 (event times have no zone here)
HOURS = {"a": 0, "b": 3, "c": 9}
"""When the only row of each user was; of them `ttl="5h"` leaves `b` only if 9h was not reached."""
LEFT = {("c",): {"n": 1}}


def script(user: str, epochs: int) -> list[Any]:
    """Return what one source reads: the row of a user, then nothing for some epochs."""
    row = {"user": user, "at": NOON + dt.timedelta(hours=HOURS[user])}
    return [row, *[CUT] * epochs]


def left_by(pipeline: pen.Pipeline, stream: Any, *epochs: int | None) -> Any:
    out = pen.list_sink(f"left-{new_token()}")
    kept = stream.key_by("user").aggregate("kept", ttl="5h", n=pen.count())
    kept.write("out", out)
    job = LocalJob(pipeline)
    for count in (*epochs, None):
        job.run(epochs=count)
    return fold(out.rows(), ["user"])


@pytest.mark.parametrize("order", [(1, 3, 5), (5, 1, 3), (3, 5, 1)])
def test_which_source_of_a_union_ends_last_does_not_decide_what_is_left(
    order: Sequence[int],
) -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    first, *others = (
        pipeline.read(f"read-{user}", ScriptedSource(script(user, count)), event_time="at")
        for user, count in zip(HOURS, order, strict=True)
    )
    assert left_by(pipeline, first.union(*others), 4) == LEFT


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"partition_column": "user"}])
def test_on_how_many_subtasks_a_step_watermark_runs_does_not_decide_what_is_left(
    parallelism: int, options: dict[str, str]
) -> None:
    pipeline = pen.Pipeline("p", parallelism=parallelism)
    scripts = {user: script(user, 1) for user in HOURS}
    stream = pipeline.read("read", ScriptedSource(scripts)).watermark("w", "at", **options)
    assert left_by(pipeline, stream) == LEFT


def test_the_delay_of_each_source_counts_at_its_end() -> None:
    pipeline = pen.Pipeline("p")
    late = ScriptedSource(script("c", 1))
    stream = pipeline.read(
        "ab", ScriptedSource([*script("a", 1), *script("b", 1)]), event_time="at"
    )
    other = pipeline.read("c", late, event_time="at", watermark_delay="90m")
    assert left_by(pipeline, stream.union(other)) == {("b",): {"n": 1}, **LEFT}
