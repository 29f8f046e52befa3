"""Several processes on one folder: exactly one creates, and a killed one breaks nothing."""

from pathlib import Path

import pytest

from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.object_store import ObjectStore
from tests.unit.state.storage.writer_processes import end, hear, start_writer, tell

RACE = """
    folder, me, rounds = Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
    store = LocalStore(folder, durable=False)
    say("ready")
    for number in range(rounds):
        sys.stdin.readline()
        say(int(store.create(f"race/{number}", me)))
"""

WRITE_FOR_EVER = """
    folder = Path(sys.argv[1])
    store = LocalStore(folder, durable=False)
    for number in range(1_000_000):
        data = number.to_bytes(4) * 500_000
        store.create(f"objects/{number}", data)
        store.put("latest", data)
        say(number)
"""

HOLD = """
    with staged_file(Path(sys.argv[1]), b"half", durable=False) as path:
        say(path)
        sys.stdin.readline()
"""


@pytest.mark.slow
def test_exactly_one_of_several_processes_creates_an_object(tmp_path: Path) -> None:
    rounds = 50
    racers = [start_writer(RACE, tmp_path, index, rounds) for index in range(4)]
    try:
        assert [hear(racer) for racer in racers] == ["ready"] * 4
        for number in range(rounds):
            for racer in racers:
                tell(racer, "go")
            wins = [hear(racer) == "1" for racer in racers]
            assert sum(wins) == 1
            assert LocalStore(tmp_path).read(f"race/{number}") == b"%d" % wins.index(True)
    finally:
        for racer in racers:
            end(racer, kill=True)


@pytest.mark.parametrize("acknowledged", [1, 4, 9])
def test_a_killed_writer_leaves_whole_objects_only(
    tmp_path: Path, acknowledged: int
) -> None:
    writer = start_writer(WRITE_FOR_EVER, tmp_path)
    for number in range(acknowledged):
        assert hear(writer) == str(number)
    end(writer, kill=True)

    store = LocalStore(tmp_path)
    kept = {info.path for info in store.list("objects")}
    assert {f"objects/{number}" for number in range(acknowledged)} <= kept
    for path in kept:
        assert is_whole(store, path, int(path.removeprefix("objects/")))
    assert any(is_whole(store, "latest", number) for number in range(len(kept)))
    assert {info.path for info in store.list("")} == kept | {"latest"}
    store.put("latest", b"")
    assert list((tmp_path / "#staging").iterdir()) == []


def is_whole(store: ObjectStore, path: str, number: int) -> bool:
    return store.read(path) == number.to_bytes(4) * 500_000


def test_the_first_write_of_a_store_removes_what_dead_writers_left_and_spares_the_living(
    tmp_path: Path,
) -> None:
    staging = tmp_path / "#staging"
    writer = start_writer(HOLD, staging)
    held = Path(hear(writer))
    assert held.parent == staging

    LocalStore(tmp_path).put("a", b"1")
    assert held.read_bytes() == b"half"

    end(writer, kill=True)
    store = LocalStore(tmp_path)
    assert held.exists()
    store.put("a", b"2")
    assert not held.exists()
    assert [info.path for info in store.list("")] == ["a"]


def test_unfinished_files_are_never_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"x")
    writer = start_writer(HOLD, tmp_path / "#staging")
    assert Path(hear(writer)).exists()
    listed = [info.path for info in store.list("")]
    end(writer)
    assert listed == ["a/b"]
