"""What a folder's staging area may and must not lose: readers change nothing, links lead nowhere."""

import os
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.state.storage.local_disk import LocalStore

TOKEN = "0" * 32


def files_below(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )


def test_who_only_reads_a_folder_makes_and_removes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "#staging").mkdir(parents=True)
    (root / "#staging" / TOKEN).write_bytes(b"of a dead writer")
    (root / "a").write_bytes(b"1")
    for folder in (root, tmp_path / "missing"):
        store = LocalStore(folder)
        found = store.read("a")
        assert found == (b"1" if folder == root else None)
        assert [info.path for info in store.list("")] == (["a"] if found else [])
        assert store.size("b") is None
        assert store.checksum("b") is None
        store.delete("b")
    assert files_below(tmp_path) == [f"root/#staging/{TOKEN}", "root/a"]
    assert not (tmp_path / "missing").exists()


def test_the_first_write_removes_leftovers_and_nothing_that_is_not_ours(
    tmp_path: Path,
) -> None:
    staging, other = tmp_path / "root" / "#staging", tmp_path / "other"
    staging.mkdir(parents=True)
    other.write_bytes(b"precious")
    (staging / TOKEN).write_bytes(b"of a dead writer")
    (staging / "notes.txt").write_bytes(b"of a person")
    (staging / TOKEN.replace("0", "1")).symlink_to(other)
    (staging / TOKEN.replace("0", "2")).mkdir()
    os.mkfifo(staging / TOKEN.replace("0", "3"))
    store = LocalStore(tmp_path / "root")
    store.put("a", b"1")
    assert other.read_bytes() == b"precious"
    assert sorted(path.name[0] for path in staging.iterdir()) == ["1", "2", "3", "n"]

    (staging / TOKEN).write_bytes(b"of another one")
    store.put("b", b"2")
    assert (staging / TOKEN).exists(), "only the first write looks for leftovers"


def test_a_staging_folder_that_is_a_link_is_neither_emptied_nor_written_to(
    tmp_path: Path,
) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (other / TOKEN).write_bytes(b"precious")
    (root / "#staging").symlink_to(other)
    store = LocalStore(root)
    for write in (store.put, store.create):
        # Not a StorageError, after which jobs try again.
        with pytest.raises(UserError, match=r"a link or a file.*remove it"):
            write("a", b"1")
    assert store.read("a") is None
    assert files_below(other) == [TOKEN]
