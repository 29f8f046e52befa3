"""An updating aggregate without a key: one result of all rows, at any parallelism."""

import datetime as dt
from typing import Any

import pytest

import penstock as pen
from penstock.errors import UserError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import fold

AT = dt.datetime(2024, 1, 1)  # noqa: DTZ001 (event times have no zone here)
ROWS = [{"k": str(n % 3), "n": n, "at": AT + dt.timedelta(hours=n)} for n in range(9)]
EPOCHS = DriverSettings(budget=SourceBudget(rows=3), adapts_budget=False)


def changes_of(
    name: str, *, runs: tuple[int | None, ...] = (None,), **options: Any
) -> list[dict[str, Any]]:
    out = pen.list_sink(name)
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source(ROWS, splits=2), event_time="at")
    rows.aggregate("all", total=pen.sum("n"), **options).write("out", out)
    job = LocalJob(pipeline, settings=EPOCHS)
    for epochs in runs:
        job.run(epochs=epochs)
    return list(out.rows())


def test_a_stream_without_a_key_has_one_result_of_all_rows() -> None:
    found = changes_of(
        "all-rows", runs=(1, None), rows=pen.count(), keys=pen.count_distinct("k")
    )
    assert len(found) > 1
    assert fold(found, []) == {(): {"total": 36, "rows": 9, "keys": 3}}
    assert list(found[0]) == ["change", "total", "rows", "keys"]


def test_the_result_of_all_rows_has_a_time_to_live_too() -> None:
    found = changes_of("all-rows-ttl", ttl="1h", ttl_domain="processing-time")
    assert fold(found, []) == {(): {"total": 36}}


def test_the_clock_of_a_time_to_live_can_be_spelled_as_text() -> None:
    found = changes_of("ttl-as-text", ttl="20h", ttl_domain="event-time")
    assert fold(found, []) == {(): {"total": 36}}


def test_a_clock_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        UserError, match="ttl_domain is 'event'; did you mean 'event-time'"
    ) as caught:
        changes_of("ttl-of-no-clock", ttl="20h", ttl_domain="event")
    assert "use 'event-time' or 'processing-time'" in caught.value.message


@pytest.mark.parametrize("step", ["window", "session", "kept"])
def test_a_key_called_like_a_column_of_the_state_is_refused(step: str) -> None:
    pipeline = pen.Pipeline("p")
    source = pen.list_source([{"n.count": 1, "at": AT}])
    keyed = pipeline.read("rows", source, event_time="at").key_by("n.count")
    if step == "kept":
        keyed.aggregate("kept", n=pen.count())
    else:
        window = pen.session("1h") if step == "session" else pen.tumbling("1h")
        keyed.window("w", window).aggregate(n=pen.count())
    with pytest.raises(UserError, match=r"'n\.count' is called like a column of its state"):
        pipeline.graph()


def test_a_key_called_like_the_time_of_its_last_row_is_refused() -> None:
    pipeline = pen.Pipeline("p")
    keyed = pipeline.read("rows", pen.list_source([{"ttl.value": 1}])).key_by("ttl.value")
    keyed.aggregate("kept", ttl="1h", n=pen.count())
    with pytest.raises(UserError, match="called like a column of its state"):
        pipeline.graph()
