"""What is special about objects on a local disk: folders, flushing, and its own errors."""

import errno
import os
import pickle
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, StorageError, UnknownOutcomeError, UserError
from penstock.state.storage.local_disk import LocalStore

NOBODY = 65534


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[None]:
    """Mount a file system that can be full or read-only, or skip the test."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system to fill up or to make read-only")
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here, even to root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def without_rights() -> Iterator[None]:
    """Be an ordinary user for a while: root may do everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that an ordinary user can reach; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def files_below(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )


def test_an_object_is_a_plain_file_at_its_path(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("a/b.parquet", b"x")
    assert (tmp_path / "a" / "b.parquet").read_bytes() == b"x"
    assert files_below(tmp_path) == ["a/b.parquet"]


def test_files_others_put_there_are_listed_unless_no_path_can_name_them(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "fine").write_bytes(b"12")
    (tmp_path / "odd#1").write_bytes(b"1")
    (tmp_path / "odd\nname").write_bytes(b"1")
    assert [(info.path, info.size_bytes) for info in store.list("")] == [("fine", 2)]


def test_who_reads_the_files_of_others_can_list_odd_names_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/fine", b"12")
    (tmp_path / "a" / "#staging").mkdir()
    (tmp_path / "odd#").mkdir()
    names = ("a/fine", "a/odd\nname", "a/odd\\", "odd#/b", os.fsdecode(b"\xff"))
    for name in (*names[1:], "#staging/token", "a/#staging/token"):
        (tmp_path / name).write_bytes(b"1")

    assert [info.path for info in store.list("")] == ["a/fine"]
    assert [info.path for info in store.list_files("")] == list(names)
    assert [info.path for info in store.list_files("a")] == list(names[:3])


def test_links_are_followed_unless_the_files_behind_them_are_listed_already(
    tmp_path: Path,
) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    other.mkdir()
    (other / "x").write_bytes(b"1")
    (other / "again").symlink_to(other)
    (tmp_path / "link").symlink_to(root)
    store = LocalStore(tmp_path / "link")
    store.put("a/b", b"12")
    (root / "a" / "c").symlink_to("b")
    (root / "d").symlink_to("a")
    (root / "e").symlink_to(tmp_path)
    (root / "f").symlink_to(other)

    assert [info.path for info in store.list("")] == ["a/b", "a/c", "f/x"]
    assert [info.path for info in store.list("d")] == ["d/b", "d/c"]


def test_folders_that_become_empty_are_removed_and_others_are_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b/c/d", b"x")
    store.put("a/e", b"y")
    store.delete("a/b/c/d")
    assert not (tmp_path / "a" / "b").exists()
    store.delete("a/e")
    assert not (tmp_path / "a").exists()
    assert tmp_path.exists()


def test_a_folder_may_vanish_under_a_writer(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, durable=False)

    def write_and_delete(index: int) -> int:
        wins = 0
        for number in range(40):
            wins += store.create(f"deep/er/{number}/{index}", b"x")
            store.delete(f"deep/er/{number}/{index}")
        return wins

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write_and_delete, range(4))) == [40] * 4
    assert files_below(tmp_path) == []


def test_opening_a_store_disturbs_nobody_who_writes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, durable=False)

    def write(index: int) -> int:
        return sum(store.create(f"{index}/{number}", b"x") for number in range(100))

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, index) for index in range(2)]
        while not all(writer.done() for writer in writers):
            LocalStore(tmp_path)
        assert [writer.result() for writer in writers] == [100, 100]
    assert len([*store.list("")]) == 200


def test_a_removed_root_is_made_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("x", b"1")
    shutil.rmtree(tmp_path / "root")
    assert store.read("a") is None
    assert list(store.list("")) == []
    assert store.create("a", b"x")
    assert store.read("a") == b"x"


@pytest.mark.parametrize("write", ["put", "create"])
def test_an_object_inside_an_object_is_refused(tmp_path: Path, write: str) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"x")
    with pytest.raises(StorageError, match=r"could not .* 'a/b' in file://"):
        getattr(store, write)("a/b", b"y")
    assert store.read("a") == b"x"
    assert store.read("a/b") is None


@pytest.mark.parametrize("write", ["put", "create"])
def test_an_object_in_place_of_a_folder_is_refused(tmp_path: Path, write: str) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"x")
    with pytest.raises(StorageError, match=r"could not .* 'a' in file://"):
        getattr(store, write)("a", b"y")
    assert store.read("a/b") == b"x"


def test_a_file_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="is not a folder") as caught:
            LocalStore(root)
        assert caught.value.code is ErrorCode.INVALID_URL


def test_a_segment_too_long_for_the_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(StorageError, match="File name too long"):
        store.create("x" * 300, b"y")
    assert files_below(tmp_path) == []


def test_a_full_disk_is_named_and_older_objects_stay(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=256k"):
        store = LocalStore(tmp_path / "small")
        store.put("old", b"precious")
        for write in (store.put, store.create):
            with pytest.raises(StorageError) as caught:
                write("new", b"x" * 1_000_000)
            assert caught.value.code is ErrorCode.STORAGE_FULL
            assert "'new'" in caught.value.message
            assert store.url in caught.value.message
            assert "Free space" in caught.value.message
        with pytest.raises(StorageError) as caught:
            store.put("old", b"x" * 1_000_000)
        assert store.read("old") == b"precious"
        assert [info.path for info in store.list("")] == ["old"]
        assert store.create("small", b"fits"), "the failed attempts left nothing behind"


def test_a_read_only_store_can_be_read_and_says_so_when_written(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    with tmpfs(folder, "size=256k"):
        LocalStore(folder).put("a/b", b"x")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        store = LocalStore(folder)
        assert store.read("a/b") == b"x"
        assert [info.path for info in store.list("")] == ["a/b"]
        for call in (
            lambda: store.put("a/b", b"y"),
            lambda: store.create("c", b"y"),
            lambda: store.delete("a/b"),
            lambda: LocalStore(folder / "new").put("a", b"y"),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.code is ErrorCode.STORAGE_READ_ONLY
            assert "Make the store writable" in caught.value.message
        assert store.read("a/b") == b"x"


def test_missing_rights_are_named(shared_folder: Path) -> None:
    store = LocalStore(shared_folder)
    store.put("a/b", b"x")
    (shared_folder / "a" / "b").chmod(0)
    for folder in ("#staging", "a", "."):
        (shared_folder / folder).chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IXOTH)
    with without_rights():
        for call in (
            lambda: store.read("a/b"),
            lambda: store.list("a"),
            lambda: store.put("a/b", b"y"),
            lambda: store.create("c", b"y"),
            lambda: store.delete("a/b"),
            lambda: LocalStore(shared_folder / "new"),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            assert caught.value.code is ErrorCode.STORAGE_PERMISSION
            assert "Permission denied" in caught.value.message
    for folder in (".", "a", "#staging"):
        (shared_folder / folder).chmod(0o755)
    (shared_folder / "a" / "b").chmod(0o644)
    assert store.read("a/b") == b"x"


def test_bytes_reach_the_disk_before_their_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    steps: list[str] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def record_fsync(handle: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        steps.append("flush folder" if is_folder else "flush file")
        fsync(handle)

    def record_link(source: Path, target: Path) -> None:
        link(source, target)
        steps.append("name")

    def record_replace(source: Path, target: Path) -> None:
        replace(source, target)
        steps.append("name")

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    monkeypatch.setattr(os, "replace", record_replace)
    store.create("a/b", b"x")
    # The new folder `a` is made, and its own name flushed, in between.
    assert steps == ["flush file", "flush folder", "name", "flush folder"]
    steps.clear()
    store.put("a/b", b"y")
    assert steps == ["flush file", "name", "flush folder"]
    steps.clear()
    LocalStore(tmp_path, durable=False).put("a/c", b"z")
    assert steps == ["name"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EIO, UnknownOutcomeError),
        (errno.ETIMEDOUT, UnknownOutcomeError),
        (errno.EACCES, StorageError),
        (errno.ENOSPC, StorageError),
        (errno.ENOTSUP, StorageError),
    ],
)
def test_a_failed_naming_is_certain_only_if_the_disk_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[Exception],
) -> None:
    store = LocalStore(tmp_path)

    def fail(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(expected, match=os.strerror(number)):
        store.create("a", b"x")
    assert files_below(tmp_path) == []


def test_a_taken_name_that_the_disk_cannot_look_at_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.create("a", b"x")

    is_dir = Path.is_dir

    def fail_on_object(path: Path) -> bool:
        if path.name == "a":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", fail_on_object)
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        store.create("a", b"y")


def test_an_object_whose_folder_could_not_be_flushed_is_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    fsync = os.fsync

    def fail_on_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(UnknownOutcomeError, match="read it back"):
        store.create("a", b"x")
    assert store.read("a") == b"x"


def test_a_failed_flush_of_the_bytes_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"old")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="Nothing was changed"):
        store.put("a", b"new")
    assert store.read("a") == b"old"
    assert files_below(tmp_path) == ["a"]


def test_a_failed_delete_may_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"x")

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(UnknownOutcomeError, match="delete 'a'"):
        store.delete("a")


def test_pickling_keeps_the_choice_of_durability(tmp_path: Path) -> None:
    for durable in (True, False):
        store = LocalStore(tmp_path, durable=durable)
        again = pickle.loads(pickle.dumps(store))
        assert again._durable is durable
        assert again.url == store.url
