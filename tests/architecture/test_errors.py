"""The exception tree: drawn in its docstring, picklable, with a code for every class."""

import inspect
import pickle
import re

import pytest

from penstock import errors
from penstock.errors import ErrorCode, PenstockError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, PenstockError)
]


def drawn_tree() -> dict[str, str | None]:
    """Return class → parent as the module's docstring draws them."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(
            r"^ {4}(?P<branch>(?:[│ ] {3})*(?:[├└]── )?)(?P<name>\w+Error)\b", line
        )
        if match is not None:
            depth = len(match["branch"]) // 4
            path = [*path[:depth], match["name"]]
            parents[match["name"]] = path[-2] if depth else None
    return parents


def test_the_docstring_draws_exactly_the_tree_that_exists() -> None:
    actual = {
        kind.__name__: None if kind is PenstockError else kind.__bases__[0].__name__
        for kind in CLASSES
    }
    assert drawn_tree() == actual


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_reaches_another_process_whole(kind: type[PenstockError]) -> None:
    error = kind("what, where, what to do", code=ErrorCode.FENCED, path="a/b", epoch=3)
    error.add_note("a hint")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "what, where, what to do"
    assert copy.code is ErrorCode.FENCED
    assert copy.context == {"path": "a/b", "epoch": 3}
    assert copy.__notes__ == ["a hint"]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_has_one_base_and_a_docstring_of_its_own(
    kind: type[PenstockError],
) -> None:
    assert len(kind.__bases__) == 1
    assert kind.__dict__.get("__doc__")


def test_error_codes_are_unique_and_spelled_like_their_names() -> None:
    assert [code.value for code in ErrorCode] == [
        name.lower().replace("_", "-") for name in ErrorCode.__members__
    ]
