"""Names that other libraries have for steps are answered with what there is instead."""

from typing import Any

import pytest

import penstock as pen
from penstock.api.other_words import KEYED_HINTS, STREAM_HINTS, WINDOWED_HINTS
from penstock.api.stream import KeyedStream, Stream, WindowedStream


def a_stream() -> Stream:
    rows = pen.list_source([{"user": "ada", "n": 1}])
    return pen.Pipeline("p").read("rows", rows)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("group_by", "key_by"),
        ("groupBy", "key_by"),
        ("agg", "aggregate"),
        ("unique", "deduplicate"),
        ("dropDuplicates", "deduplicate"),
        ("rank", "top"),
        ("crossJoin", "join"),
        ("where", "filter"),
        ("withColumn", "with_columns"),
        ("show", "preview"),
        ("withWatermark", "watermark"),
    ],
)
def test_a_name_of_another_library_is_no_attribute_and_answered_with_what_there_is(
    name: str, hint: str
) -> None:
    stream = a_stream()
    assert not hasattr(stream, name)
    with pytest.raises(AttributeError, match=f"Stream has no attribute '{name}': .*{hint}"):
        getattr(stream, name)
    assert getattr(stream, name, "nothing") == "nothing"


def test_any_other_name_is_a_plain_attribute_error() -> None:
    stream = a_stream()
    for thing in (stream, stream.key_by("user"), stream.window("w", pen.tumbling("1m"))):
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            getattr(thing, "nonsense")  # noqa: B009 (a checker would refuse the attribute)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("windw", "; did you mean 'window'?"),
        ("agregate", "; did you mean 'aggregate'?"),
        ("gruop_by", ": key_by(…) sends rows by key"),
        ("_fliter", ""),
    ],
)
def test_a_misspelt_step_is_answered_with_the_one_that_was_meant(
    name: str, hint: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(a_stream(), name)
    text = str(caught.value)
    assert text.startswith(f"Stream has no attribute '{name}'{hint}")
    assert hint or text.endswith("'")


def test_other_misspelt_names_are_answered_too() -> None:
    keyed, pipeline = a_stream().key_by("user"), pen.Pipeline("p")
    for thing, name, hint in (
        (keyed, "fliter", "put it before key_by"),
        (keyed, "procces", "did you mean 'process'"),
        (pipeline, "raed", "did you mean 'read'"),
        (pipeline, "filter", "returns a stream: steps follow it"),
        (pen, "tumblng", "did you mean 'tumbling'"),
        (keyed.schema, "key_colums", "did you mean 'key_columns'"),
    ):
        with pytest.raises(AttributeError, match=hint):
            getattr(thing, name)


@pytest.mark.parametrize("name", ["filter", "select", "map_batches", "write", "key_by"])
def test_a_keyed_stream_says_where_steps_without_a_key_belong(name: str) -> None:
    keyed = a_stream().key_by("user")
    assert not hasattr(keyed, name)
    with pytest.raises(AttributeError, match=r"KeyedStream has no attribute .*key_by"):
        getattr(keyed, name)


def test_windows_say_that_they_need_something_to_compute() -> None:
    windows = a_stream().window("w", pen.tumbling("1m"))
    with pytest.raises(AttributeError, match="aggregate"):
        getattr(windows, "write")  # noqa: B009 (a checker would refuse the attribute)


@pytest.mark.parametrize(
    ("kind", "hints"),
    [(Stream, STREAM_HINTS), (KeyedStream, KEYED_HINTS), (WindowedStream, WINDOWED_HINTS)],
)
def test_no_hint_is_about_something_that_exists(kind: Any, hints: dict[str, str]) -> None:
    assert not set(hints) & set(dir(kind))
