"""Pipelines show themselves in notebooks, and say that they have no sink before they run."""

import pickle
from pathlib import Path

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
