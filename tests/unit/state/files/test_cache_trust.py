"""Which entries of the executor cache are believed: those of this user, as they were written."""

import logging
import os
import random
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.state.files.cache import CacheKey, FileCache, find_folder_problem

FIRST, SECOND = CacheKey(1), CacheKey(2)


def a_batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array([number] * 100, pa.int64())})


def filled(root: Path) -> FileCache:
    cache = FileCache(root, 1 << 20)
    for key in (FIRST, SECOND):
        cache.put(key, a_batch(key.checksum))
    return FileCache(root, 1 << 20)


def test_an_entry_whose_content_has_changed_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(5)
    for number in range(60):
        cache = filled(tmp_path / str(number))
        entry = cache.root / FIRST.file_name
        data = bytearray(entry.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        entry.write_bytes(data)
        assert cache.get(FIRST) is None
        assert not entry.exists(), "a later put must be able to replace it"
        cache.put(FIRST, a_batch(1))
        assert cache.get(FIRST) == a_batch(1)
    assert "dropped the damaged cache entry" in caplog.text


def test_an_entry_under_the_name_of_another_is_a_miss(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    shutil.copyfile(tmp_path / FIRST.file_name, tmp_path / SECOND.file_name)
    assert cache.get(SECOND) is None
    assert cache.get(FIRST) == a_batch(1)


def test_the_cache_of_a_user_is_in_a_folder_that_nobody_else_can_write_to(
    tmp_path: Path,
) -> None:
    cache = FileCache(tmp_path / "penstock-cache-{uid}", 1 << 20)
    cache.put(FIRST, a_batch(1))
    folder = tmp_path / f"penstock-cache-{os.getuid()}"
    assert cache.root == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert FileCache(tmp_path / "penstock-cache-{uid}", 1 << 20).get(FIRST) == a_batch(1)


def a_link(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    folder.symlink_to(folder.parent / "other")


def an_open_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def a_foreign_folder(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    folder.mkdir()
    os.chown(folder, 65534, 65534)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_link, "a link or a file"),
        (Path.touch, "a link or a file|File exists"),
        (an_open_folder, "others may write to it"),
        (a_foreign_folder, "belongs to somebody else"),
    ],
)
def test_a_folder_that_is_not_this_users_own_is_not_used_and_the_job_goes_on(
    tmp_path: Path, make: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / f"cache-{os.getuid()}"
    assert callable(make)
    make(folder)
    if folder.is_dir():
        # What somebody else has prepared: a whole entry under the right name.
        filled(tmp_path / "prepared")
        shutil.copyfile(
            tmp_path / "prepared" / FIRST.file_name, folder.resolve() / FIRST.file_name
        )
    cache = FileCache(tmp_path / "cache-{uid}", 1 << 20)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert cache.get(FIRST) is None
            cache.put(SECOND, a_batch(2))
            assert cache.get(SECOND) is None
    assert len(caplog.records) == 1
    assert "going on without caching" in caplog.text
    problem = find_folder_problem(folder)
    assert problem is not None
    assert any(part in problem for part in reason.split("|"))


def test_a_folder_that_others_put_in_the_place_of_this_users_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = FileCache(tmp_path / "cache-{uid}", 1 << 20)
    cache.put(FIRST, a_batch(1))
    cache.root.rename(tmp_path / "gone")
    an_open_folder(cache.root)
    important = tmp_path / "important"
    important.write_bytes(b"a file of this user")
    (cache.root / "lock").symlink_to(important)

    cache.put(SECOND, a_batch(2))

    assert important.read_bytes() == b"a file of this user"
    assert [path.name for path in cache.root.iterdir()] == ["lock"]
    shutil.copyfile(tmp_path / "gone" / FIRST.file_name, cache.root / FIRST.file_name)
    assert cache.get(FIRST) is None
    assert "others may write to it" in caplog.text


def test_an_entry_that_belongs_to_somebody_else_is_a_miss(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    cache = FileCache(tmp_path / "cache-{uid}", 1 << 20)
    cache.put(FIRST, a_batch(1))
    os.chown(cache.root / FIRST.file_name, 65534, 65534)
    assert cache.get(FIRST) is None


def test_an_entry_is_checked_once_however_seldom_it_is_used(tmp_path: Path) -> None:
    keys = [CacheKey(number) for number in range(4)]
    writing, cache = (FileCache(tmp_path, 1 << 20) for _ in range(2))
    for key in keys:
        writing.put(key, a_batch(key.checksum))
    assert cache.get(keys[0]) == a_batch(0)
    entry = tmp_path / keys[0].file_name
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1  # in the checksum of the content: only a check of the content notices it
    entry.write_bytes(data)
    checked = vars(cache)["_verified"]
    for hours, key in enumerate(keys[1:], start=1):
        vars(checked)["_now"] = lambda hours=hours: time.monotonic() + hours * 3_600
        assert cache.get(key) == a_batch(key.checksum)
    assert cache.get(keys[0]) == a_batch(0)
