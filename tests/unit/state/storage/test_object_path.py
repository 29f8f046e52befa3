"""The one rule for object paths: none can leave the store, and folders do not overlap."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.state.storage.object_store import (
    check_path,
    check_range,
    folder_start,
    is_object_path,
)

texts = st.one_of(st.text(), st.text(alphabet="ab./\\#\n\0"))


@given(texts)
def test_a_valid_path_stays_below_the_root_and_keeps_its_name(path: str) -> None:
    if is_object_path(path):
        parts = path.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert str(PurePosixPath(path)) == path
        assert not PurePosixPath(path).is_absolute()
        assert not any(ord(character) < 32 for character in path)
        assert check_path(path) == path
    else:
        with pytest.raises(UserError):
            check_path(path)


@given(
    st.lists(
        st.text(alphabet="abcXYZ019_.-", min_size=1, max_size=100).filter(
            lambda segment: segment not in {".", ".."}
        ),
        min_size=1,
        max_size=10,
    )
)
def test_ids_joined_by_slashes_are_valid_paths(segments: list[str]) -> None:
    assert is_object_path("/".join(segments))


def test_a_path_may_have_1024_bytes_and_no_more() -> None:
    assert is_object_path("é" * 512)
    assert not is_object_path("é" * 512 + "x")


def test_a_lone_surrogate_is_no_path() -> None:
    assert not is_object_path("a\ud800")


def test_a_folder_begins_with_its_separator() -> None:
    assert folder_start("a/b") == "a/b/"
    assert folder_start("") == ""
    with pytest.raises(UserError):
        folder_start("a/")


def test_an_empty_range_is_allowed() -> None:
    check_range(0, 0)
    with pytest.raises(UserError, match="negative"):
        check_range(0, -1)
