"""To which version a table went back, told by its files, and what its log then says of epochs."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.delta.actions import (
    AddedFile,
    CommitInfo,
    RemovedFile,
    Version,
)
from penstock.connectors.delta.going_back import find_target
from penstock.connectors.delta.log import Abandoned, TableLog, entry_path
from penstock.connectors.delta.marks import Began
from penstock.state.storage.memory import MemoryStore

BY_TIME = {"datetime": "1795000516946"}
VECTORS = (
    msgspec.Raw(b'{"storageType":"u","pathOrInlineDv":"ab","offset":4,"cardinality":2}'),
    msgspec.Raw(b'{"offset": 4, "pathOrInlineDv": "ab", "storageType": "u"}'),
    msgspec.Raw(b'{"storageType":"u","pathOrInlineDv":"ab","offset":9,"cardinality":2}'),
)


def a_version(
    number: int, added: str = "", removed: str = "", operation: str = "WRITE"
) -> Version:
    """Return a version whose files have names of one letter."""
    changes = operation not in ("OPTIMIZE", "ANALYZE")
    return Version(
        number,
        tuple(AddedFile(path, 1, data_change=changes) for path in added),
        tuple(RemovedFile(path, data_change=changes) for path in removed),
        info=CommitInfo(operation, BY_TIME if operation == "RESTORE" else None),
    )


def target(versions: Sequence[Version]) -> int | None:
    """Return to which version the last of them went back, as the others tell it."""
    *earlier, last = versions
    return find_target(last, reversed(earlier))


@given(data=st.data())
def test_any_table_that_went_back_is_that_of_the_version_which_is_found(
    data: st.DataObject,
) -> None:
    files: list[set[str]] = [set("ab")]
    versions = [a_version(0, "ab")]
    for number in range(1, data.draw(st.integers(2, 12))):
        old = files[-1]
        kind = data.draw(st.sampled_from(["write", "moves", "tells more", "back", "back"]))
        if kind == "back":
            new = data.draw(st.sampled_from(files))
        elif kind == "tells more":
            new = old
        elif kind == "moves":
            new = {chr(ord("A") + number)} if old else old
        else:
            new = old ^ data.draw(st.sets(st.sampled_from("abcdefgh")))
        operations = {"back": "RESTORE", "moves": "OPTIMIZE", "tells more": "ANALYZE"}
        added = old if kind == "tells more" else new - old
        names = "".join(sorted(added)), "".join(sorted(old - new))
        versions.append(a_version(number, *names, operations.get(kind, "WRITE")))
        found = target(versions)
        if kind == "back":
            newest = max(n for n, each in enumerate(files) if each == new)
            assert found == newest
        else:
            assert found is None
        files.append(set(new))


def test_no_version_is_taken_beyond_the_one_that_is_found() -> None:
    def earlier() -> Any:
        yield a_version(6, "f")
        yield a_version(5, "e")
        raise AssertionError("5 is the target")

    assert find_target(a_version(7, "", "f", "RESTORE"), earlier()) == 5


def test_a_version_that_is_told_is_believed_if_there_can_be_one() -> None:
    for told in ({"version": "2"}, {"version": 2, "timestamp": None}):
        info = CommitInfo("RESTORE", operation_parameters=told)
        assert find_target(Version(4, info=info), [a_version(3, "f")]) == 2
    unknown = (None, {"timestamp": "x"}, {"version": None}, {"version": 9}, "text")
    for other in unknown:
        info = CommitInfo("RESTORE", operation_parameters=other)
        assert find_target(Version(4, info=info), [a_version(3, "f")]) == 3
        assert find_target(Version(4, info=info), []) is None


def test_a_target_that_the_log_does_not_reach_is_not_guessed() -> None:
    went = a_version(7, "", "def", "RESTORE")
    assert find_target(went, [a_version(6, "f"), a_version(5, "e"), None]) is None
    # What all entries after it tell is enough.
    some = [a_version(6, "f"), a_version(5, "e"), a_version(4, "d"), None]
    assert find_target(went, some) == 3


def test_a_table_that_there_never_was_is_no_version() -> None:
    versions = [a_version(0), a_version(1, "a"), a_version(2, "b"), a_version(3, "", "ab")]
    assert target([*versions, a_version(4, "ab", "", "RESTORE")]) == 2
    assert target([*versions, a_version(4, "b", "", "RESTORE")]) is None


def test_files_are_told_apart_by_their_deletion_vectors() -> None:
    first, same, other = VECTORS
    deletes = Version(2, (AddedFile("f", 1, deletion_vector=first),), (RemovedFile("f"),))
    info = CommitInfo("RESTORE", BY_TIME)
    gone = RemovedFile("f", deletion_vector=same)
    versions = [a_version(0), a_version(1, "f"), deletes, a_version(3, "g")]
    assert target([*versions, Version(4, (AddedFile("f", 1),), (gone,), info=info)]) is None
    gone_too = (gone, RemovedFile("g"))
    assert target([*versions, Version(4, (AddedFile("f", 1),), gone_too, info=info)]) == 1
    wrong = (RemovedFile("f", deletion_vector=other), RemovedFile("g"))
    assert target([*versions, Version(4, (AddedFile("f", 1),), wrong, info=info)]) is None


# ---- what logs with such versions say of the epochs of a sink

APP = "penstock:j:out:i"


def entry(operation: str, added: str = "", removed: str = "", **info: Any) -> list[Any]:
    changes = operation != "OPTIMIZE"
    return [
        {"commitInfo": {"operation": operation, **info}},
        *({"add": {"path": path, "size": 1, "dataChange": changes}} for path in added),
        *({"remove": {"path": path, "dataChange": changes}} for path in removed),
    ]


def went_back(added: str, removed: str, **told: str) -> list[Any]:
    return entry("RESTORE", added, removed, operationParameters=told or BY_TIME)


def an_epoch(number: int) -> list[Any]:
    """Return the entry of an epoch that has written the file of its number."""
    mark = {"app": APP, "epoch": number, "began": {"app": APP, "epoch": 1}}
    return entry("WRITE", str(number), penstock=mark)


class CountingStore(MemoryStore):
    """A store that counts the reads of each object."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.reads: Counter[str] = Counter()

    def read(self, path: str) -> bytes | None:
        self.reads[path] += 1
        return super().read(path)


def read(
    *later: list[Any], abandoned: tuple[int, int], first: int = 0, epochs: int = 5
) -> Abandoned:
    """Return what a log says; its versions 1, 2, … are epochs, and then come the `later` ones."""
    entries = [entry("CREATE TABLE"), *map(an_epoch, range(1, epochs + 1)), *later]
    lines = {
        entry_path(number): "\n".join(map(json.dumps, each)).encode()
        for number, each in enumerate(entries)
        if number >= first
    }
    store = CountingStore(lines)
    log = TableLog(store)
    found = log.read_marked(len(entries) - 1, APP, abandoned, Began(APP, 1), [abandoned])
    assert set(store.reads.values()) == {1}
    return found


def numbers(versions: Sequence[Version]) -> list[int]:
    return [version.number for version in versions]


COMPACTED = entry("OPTIMIZE", "c", "5")


def test_what_a_table_gets_back_that_went_back_too_far_is_there() -> None:
    later = went_back("", "345", version="2"), went_back("345", "")
    found = read(*later, abandoned=(6, 7))
    assert (numbers(found.versions), numbers(found.lost), found.is_whole) == ([], [], True)
    found = read(*later, abandoned=(4, 6))
    assert (numbers(found.versions), numbers(found.lost)) == ([5, 4], [])
    assert found.is_whole


def test_an_epoch_is_lost_if_the_table_went_back_behind_it_after_a_compaction() -> None:
    found = read(COMPACTED, went_back("", "c"), abandoned=(6, 7))
    assert (numbers(found.lost), found.is_whole) == ([5], True)


def test_an_epoch_is_not_lost_if_the_table_went_back_to_its_compaction() -> None:
    found = read(COMPACTED, went_back("5", "c"), went_back("c", "5"), abandoned=(6, 7))
    assert (numbers(found.lost), found.is_whole) == ([], True)


@pytest.mark.parametrize("written", [False, True], ids=["at once", "later"])
def test_a_log_that_does_not_tell_where_the_table_went_is_not_whole(
    *, written: bool
) -> None:
    # The versions before epoch 4 are cleaned up, and the table went back to one of them.
    later = [went_back("", "345"), *([an_epoch(6)] if written else [])]
    found = read(*later, abandoned=(6, 7), first=4)
    assert numbers(found.versions) == ([7] if written else [])
    # Of epoch 5 it is certain, as its own file was taken out.
    assert (numbers(found.lost), found.is_whole) == ([5], False)
    found = read(COMPACTED, went_back("", "34c"), abandoned=(6, 7), first=4)
    assert not found.is_whole
