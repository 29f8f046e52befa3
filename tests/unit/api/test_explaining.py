"""Pipelines show themselves in notebooks, and say that they have no sink before they run."""

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.errors import ErrorCode, UserError


def a_pipeline(*, writes: bool = True) -> pen.Pipeline:
    p = pen.Pipeline("clicks")
    stream = p.read("in", pen.list_source([{"user": "<ada>"}]))
    counts = stream.key_by("user").aggregate("counts", n=pen.count())
    if writes:
        counts.write("out", pen.blackhole())
    return p


def test_an_explanation_is_text_and_a_table_in_notebooks() -> None:
    text = a_pipeline().explain()
    assert isinstance(text, str)
    assert text.startswith("job clicks\n")
    html = text._repr_html_()
    for part in ("<table>", "<td>counts</td>", "user: string", "supersteps"):
        assert part in html
    again = pickle.loads(pickle.dumps(text))
    assert (again, again._repr_html_()) == (text, html)


def test_drawings_are_shown_too_and_escaped() -> None:
    assert a_pipeline().explain("mermaid")._repr_html_().startswith('<pre class="mermaid">')
    assert "&quot;" in a_pipeline().explain("json")._repr_html_()


def test_a_pipeline_shows_itself_in_notebooks_also_with_mistakes() -> None:
    assert "<td>counts</td>" in a_pipeline()._repr_html_()
    broken = pen.Pipeline("broken")
    broken.read("in", pen.list_source([{"user": "a"}])).select("<usr>")
    assert "&lt;usr&gt;" in broken._repr_html_()
    assert "<b>empty</b>" in pen.Pipeline("empty")._repr_html_()


def test_a_pipeline_without_a_sink_is_explained_but_not_run(tmp_path: Path) -> None:
    p = a_pipeline(writes=False)
    assert "counts" in p.explain()
    place = str(tmp_path / "checkpoints")
    for run in (p.run_in_process, p.check, p.run, p.start, p.start_in_process):
        with pytest.raises(UserError, match=r"'clicks' has no sink.*write") as raised:
            run(place)
        assert raised.value.code is ErrorCode.INVALID_GRAPH
    assert not [*tmp_path.iterdir()]


def test_progress_shows_itself_in_notebooks(tmp_path: Path) -> None:
    with (tmp_path / "progress.txt").open("w") as file:
        progress = pen.Progress(file=file, is_live=False)
        assert progress._repr_html_().startswith("<pre>")
        a_pipeline().run_in_process("memory:", on_status=progress)
    assert "rows read" in progress._repr_html_()


AT = datetime(2026, 1, 1, tzinfo=UTC)
LEFT = "keeps left rows="
RIGHT = "keeps right rows="


async def ask(keys: pl.DataFrame) -> pl.DataFrame:
    return keys


@pytest.mark.parametrize(
    ("options", "left", "right"),
    [
        (
            {"within": ("-5m", "10m")},
            "until the watermark is 10m",
            "until the watermark is 5m",
        ),
        (
            {"within": ("-5m", "10m"), "how": "full"},
            "until the watermark is 15m",
            "until the watermark is 15m",
        ),
        (
            {"window": pen.tumbling("1m")},
            "until their last window",
            "until their last window",
        ),
        (
            {"window": pen.sliding("2m", "1m"), "how": "anti"},
            "until their last window",
            "until their last window",
        ),
        ({"window": pen.session("1m")}, "until their session", "until their session"),
        ({"ttl": ("1d", None)}, "for 1d of event time", "for ever"),
        ({"right": pen.lookup_frame([{"k": 1}])}, "not at all", "in memory, not in state"),
        (
            {"right": pen.lookup_function(ask, schema={"k": int})},
            "not at all",
            "in the cache, not in state",
        ),
        ({"right": pen.lookup_stream}, "not at all", "until others replace them"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_explain_shows_what_each_side_of_a_join_keeps_and_for_how_long(
    options: dict[str, Any], left: str, right: str
) -> None:
    p = pen.Pipeline("p")
    rows = p.read("left", pen.list_source([{"k": 1, "at": AT}]), event_time="at")
    others = p.read("right", pen.list_source([{"k": 1, "m": 2, "at": AT}]), event_time="at")
    given = options.get("right", others)
    other = given(others) if callable(given) else given
    rest = {name: value for name, value in options.items() if name != "right"}
    rows.join("j", other, on="k", **rest).write("out", pen.blackhole())
    shown = next(line for line in p.explain().splitlines() if line.strip().startswith("j:"))
    assert f"{LEFT}{left}" in shown
    assert f"{RIGHT}{right}" in shown


def test_explain_shows_what_tables_and_aggregates_keep() -> None:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source([{"k": 1, "gone": False, "at": AT}]))
    rows.from_upserts("table", key="k", deleted="gone").write("a", pen.blackhole())
    rows.key_by("k").aggregate("counts", n=pen.count()).write("b", pen.blackhole())
    rows.top("best", 3, by="at", per="k").write("c", pen.blackhole())
    rows.deduplicate("once", "k", ttl="1h").write("d", pen.blackhole())
    shown = p.explain()
    assert "keeps=the last row of each key until it is deleted" in shown
    assert "keeps=every key for ever" in shown
    assert "keeps=3 rows per k" in shown
    assert "keeps=keys for 1h" in shown
