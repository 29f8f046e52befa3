"""What every object store owes its callers, tried on each of them."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from penstock.core.clock import new_token
from penstock.core.ids import checksum_of
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.create import probe_store
from penstock.state.storage.object_store import ObjectInfo, ObjectStore

ODD_PATHS = [
    "a",
    "a.b-c_d/e",
    "job-1/generations/12/checkpoints/0000000003/manifest.pb",
    "..a/...",
    ".hidden/x",
    "with space/and=equals+plus%20percent",
    "Ünïcödé/名前",
    "x" * 200,
]
BAD_PATHS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "../a",
    "a/.",
    "a\\b",
    "a#1",
    "a\nb",
]


def paths(store: ObjectStore, prefix: str) -> list[str]:
    return [info.path for info in store.list(prefix)]


def test_it_is_an_object_store(store: ObjectStore) -> None:
    assert isinstance(store, ObjectStore)


def test_what_is_put_is_read_back(store: ObjectStore) -> None:
    store.put("a/b", b"some bytes")
    assert store.read("a/b") == b"some bytes"
    assert type(store.read("a/b")) is bytes


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff\r\n\x80", "snö €".encode(), bytes(range(256))]
)
def test_every_byte_survives(store: ObjectStore, data: bytes) -> None:
    store.put("put", data)
    assert store.create("created", data)
    assert store.read("put") == store.read("created") == data
    assert store.size("put") == store.size("created") == len(data)
    assert store.checksum("put") == checksum_of(data)


def test_put_replaces_longer_and_shorter_objects_whole(store: ObjectStore) -> None:
    for data in (b"first", b"a much longer second one", b"3", b""):
        store.put("a", data)
        assert store.read("a") == data
        assert store.size("a") == len(data)


def test_create_writes_once_and_never_again(store: ObjectStore) -> None:
    assert store.create("a/b", b"first") is True
    assert store.create("a/b", b"second") is False
    assert store.create("a/b", b"first") is False
    assert store.read("a/b") == b"first"


def test_create_does_not_replace_what_was_put(store: ObjectStore) -> None:
    store.put("a", b"put")
    assert store.create("a", b"created") is False
    assert store.read("a") == b"put"


def test_an_empty_object_counts_as_existing(store: ObjectStore) -> None:
    assert store.create("empty", b"") is True
    assert store.create("empty", b"more") is False
    assert store.read("empty") == b""


def test_a_deleted_object_can_be_created_again(store: ObjectStore) -> None:
    assert store.create("a/b", b"first")
    store.delete("a/b")
    assert store.create("a/b", b"second") is True
    assert store.read("a/b") == b"second"


def test_a_copy_holds_the_same_bytes_and_outlives_its_source(store: ObjectStore) -> None:
    store.create("staged/a", b"some bytes")
    assert store.copy("staged/a", "final/b=1/a") is True
    store.delete("staged/a")
    assert store.read("final/b=1/a") == b"some bytes"
    assert store.checksum("final/b=1/a") == checksum_of(b"some bytes")


def test_a_copy_changes_nothing_that_is_there(store: ObjectStore) -> None:
    store.create("a", b"new")
    store.create("b", b"old")
    assert store.copy("a", "b") is False
    assert store.copy("missing", "b") is False
    assert store.read("b") == b"old"
    assert store.read("a") == b"new"


def test_a_copy_of_nothing_is_nothing(store: ObjectStore) -> None:
    assert store.copy("missing", "folder/b") is None
    assert store.read("folder/b") is None
    assert paths(store, "") == []


def test_replacing_the_source_leaves_its_copy_alone(store: ObjectStore) -> None:
    store.put("a", b"first")
    assert store.copy("a", "b")
    store.put("a", b"second")
    assert (store.read("a"), store.read("b")) == (b"second", b"first")


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_bad_path_is_no_end_of_a_copy(store: ObjectStore, path: str) -> None:
    store.put("good", b"")
    for source, target in (("good", path), (path, "other")):
        with pytest.raises(UserError):
            store.copy(source, target)


@pytest.mark.parametrize("path", ODD_PATHS)
def test_odd_paths_can_be_copied_to_and_from(store: ObjectStore, path: str) -> None:
    store.put("source", b"1")
    assert store.copy("source", path)
    assert store.copy(path, "target")
    assert store.read("target") == b"1"


def test_exactly_one_of_many_threads_creates_an_object(store: ObjectStore) -> None:
    threads = 8
    start = Barrier(threads)

    def race(index: int) -> list[bool]:
        wins = []
        for round_number in range(5):
            start.wait()
            wins.append(store.create(f"race/{round_number}", b"%d" % index))
        return wins

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(race, range(threads)))
    for round_number, wins in enumerate(zip(*answers, strict=True)):
        assert sum(wins) == 1
        assert store.read(f"race/{round_number}") == b"%d" % wins.index(True)


def test_a_reader_sees_the_old_or_the_new_bytes_never_a_mixture(store: ObjectStore) -> None:
    versions = [b"%d" % number * 20_000 for number in range(10)]
    store.put("a", versions[0])

    def write() -> None:
        for version in versions:
            store.put("a", version)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        seen = [store.read("a")]
        while not writing.done():
            seen.append(store.read("a"))
        writing.result()
    assert set(seen) <= set(versions)
    assert store.read("a") == versions[-1]


def test_absence_is_a_value(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    for path in ("none", "a/none", "none/none/none"):
        assert store.read(path) is None
        assert store.read_range(path, 0, 1) is None
        assert store.read_range(path, 0, 0) is None
        assert store.size(path) is None
        assert store.checksum(path) is None


def test_a_folder_is_not_an_object(store: ObjectStore) -> None:
    store.put("a/b/c", b"x")
    assert store.read("a/b") is None
    assert store.read_range("a/b", 0, 1) is None
    assert store.size("a") is None
    assert store.checksum("a/b") is None
    store.delete("a/b")
    assert store.read("a/b/c") == b"x"


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 10, b"0123456789"),
        (2, 3, b"234"),
        (9, 1, b"9"),
        (8, 100, b"89"),
        (0, 10**13, b"0123456789"),
        (10, 1, b""),
        (50, 5, b""),
        (3, 0, b""),
    ],
)
def test_a_range_holds_what_lies_inside_the_object(
    store: ObjectStore, start: int, length: int, expected: bytes
) -> None:
    store.put("a", b"0123456789")
    assert store.read_range("a", start, length) == expected


def test_a_range_of_an_empty_object_is_empty(store: ObjectStore) -> None:
    store.put("a", b"")
    assert store.read_range("a", 0, 5) == b""


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
def test_a_negative_range_is_refused(store: ObjectStore, start: int, length: int) -> None:
    store.put("a", b"0123456789")
    with pytest.raises(UserError) as caught:
        store.read_range("a", start, length)
    assert caught.value.code is ErrorCode.INVALID_NUMBER


def test_deleting_removes_one_object_and_an_absent_one_is_fine(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    store.put("a/c", b"y")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/was/there")
    assert store.read("a/b") is None
    assert store.size("a/b") is None
    assert store.read("a/c") == b"y"


def test_a_listing_holds_every_object_below_the_folder_in_order_of_path(
    store: ObjectStore,
) -> None:
    for path in ("a/z", "a/b/c/d", "a/b.x", "a/b-x", "ab/c", "a.b", "b"):
        store.put(path, path.encode())
    assert list(store.list("a")) == [
        ObjectInfo(path, len(path)) for path in ("a/b-x", "a/b.x", "a/b/c/d", "a/z")
    ]
    assert paths(store, "a/b") == ["a/b/c/d"]
    assert paths(store, "") == ["a.b", "a/b-x", "a/b.x", "a/b/c/d", "a/z", "ab/c", "b"]


def test_folders_are_named_without_what_lies_in_them(store: ObjectStore) -> None:
    for path in ("a/z", "a/b/c/d", "a/b/e", "a/b.x", "ab/c", "b"):
        store.put(path, b"x")
    assert list(store.folders("")) == ["a", "ab"]
    assert list(store.folders("a")) == ["b"]
    assert list(store.folders("a/b")) == ["c"]
    assert list(store.folders("a/z")) == list(store.folders("none")) == []
    store.delete("a/b/c/d")
    assert list(store.folders("a/b")) == []


def test_a_listing_of_nothing_is_empty(store: ObjectStore) -> None:
    assert paths(store, "") == []
    store.put("a/b", b"x")
    assert paths(store, "none") == []
    assert paths(store, "a/b") == []


def test_a_listing_forgets_what_was_deleted(store: ObjectStore) -> None:
    store.put("a/b/c", b"x")
    store.put("a/d", b"y")
    store.delete("a/b/c")
    assert paths(store, "a") == ["a/d"]
    assert paths(store, "a/b") == []


@pytest.mark.slow
def test_more_folders_than_a_page_holds_are_all_named(store: ObjectStore) -> None:
    names = [f"{number:05}" for number in range(1_050)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.put(f"many/{name}/x", b""), names))
    assert list(store.folders("many")) == names


@pytest.mark.slow
def test_a_listing_goes_beyond_a_page(store: ObjectStore) -> None:
    names = [f"many/{number:05}" for number in range(1_050)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.put(name, b""), names))
    assert paths(store, "many") == names


@pytest.mark.parametrize("path", ODD_PATHS)
def test_odd_but_legal_paths_work_everywhere(store: ObjectStore, path: str) -> None:
    assert store.create(path, b"x") is True
    assert store.create(path, b"y") is False
    assert store.read(path) == b"x"
    assert paths(store, "") == [path]
    store.delete(path)
    assert paths(store, "") == []


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_could_leave_the_store_is_refused(
    store: ObjectStore, path: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(path, b"x"),
        lambda: store.create(path, b"x"),
        lambda: store.read(path),
        lambda: store.read_range(path, 0, 1),
        lambda: store.size(path),
        lambda: store.checksum(path),
        lambda: store.delete(path),
    ]
    if path:  # the empty prefix is the whole store
        calls.append(lambda: list(store.list(path)))
    for call in calls:
        with pytest.raises(UserError) as caught:
            call()
        assert caught.value.code is ErrorCode.INVALID_NAME
    assert paths(store, "") == []


def test_a_pickled_store_finds_the_same_objects(store: ObjectStore) -> None:
    store.put("a", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert again.read("a") == b"x"
    assert again.create("a", b"y") is False
    assert copy.copy(store).read("a") == b"x"


def test_neither_url_nor_repr_holds_a_credential(store: ObjectStore) -> None:
    assert "for-tests" not in store.url + repr(store)
    assert store.url in repr(store)


def test_a_good_store_passes_the_probe_and_keeps_nothing_of_it(store: ObjectStore) -> None:
    store.put("job/a", b"x")
    probe_store(store, "job", new_token())
    probe_store(store, "", new_token())
    assert paths(store, "") == ["job/a"]


@pytest.mark.slow
def test_an_object_of_more_than_100_megabytes_survives(store: ObjectStore) -> None:
    data = bytes(range(256)) * (101 * 4096)
    assert store.create("created", data)
    store.put("put", data)
    for path in ("created", "put"):
        assert store.size(path) == len(data)
        assert store.checksum(path) == checksum_of(data)
        assert store.read_range(path, len(data) - 3, 10) == b"\xfd\xfe\xff"
    assert store.create("created", b"x") is False
