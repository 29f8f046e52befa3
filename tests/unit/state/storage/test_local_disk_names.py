"""Names that a disk refuses: an error of the store in every call that writes, never a bare one."""

from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.state.storage.local_disk import LocalStore

LONG = "x" * 256


@pytest.mark.parametrize("target", [LONG, f"{LONG}/file", f"folder/{LONG}/file"])
def test_a_copy_to_a_name_too_long_is_refused_and_changes_nothing(
    tmp_path: Path, target: str
) -> None:
    store = LocalStore(tmp_path)
    store.put("there", b"data")
    with pytest.raises(StorageError, match=r"could not copy .* too long") as raised:
        store.copy("there", target)
    assert raised.value.context["path"] == target
    assert [info.path for info in store.list("")] == ["there"]


def test_a_copy_of_a_name_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"could not copy 'target' .* too long"):
        LocalStore(tmp_path).copy(LONG, "target")


def test_an_object_cannot_be_created_under_a_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"could not create .* too long"):
        LocalStore(tmp_path).create(f"{LONG}/file", b"data")
