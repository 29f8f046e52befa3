"""Pure decisions about Delta tables: log entries, reversals, places and watermarks."""

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.connectors.delta.actions import (
    AddedFile,
    CommitInfo,
    RemovedFile,
    Version,
    decode_version,
    read_bound,
)
from penstock.connectors.delta.client import to_client_options
from penstock.connectors.delta.log import TableLog, entry_path
from penstock.connectors.delta.marks import Mark
from penstock.connectors.delta.planning import (
    Place,
    RowsAre,
    WaitingFile,
    find_forgotten,
    find_upto,
    is_watermark_held,
    read_name,
)
from penstock.connectors.delta.stretches import LeftFile, to_stretches
from penstock.connectors.delta.undoing import Fate, Fates, plan_reversal
from penstock.errors import CorruptStateError, UserError
from penstock.operators.splits import SplitState
from penstock.state.storage.memory import MemoryStore


@given(
    start=st.sets(st.sampled_from("abcd")),
    steps=st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=6),
)
def test_a_reversal_of_any_versions_leads_back_to_the_files_before_them(
    start: set[str], steps: list[set[str]]
) -> None:
    files, versions = set(start), []
    for number, touched in enumerate(steps):
        added = tuple(AddedFile(path, 1) for path in sorted(touched - files))
        removed = tuple(RemovedFile(path, size=1) for path in sorted(touched & files))
        versions.append(Version(number, added, removed))
        files ^= touched
    plan = plan_reversal(reversed(versions), files, lambda _: True)
    assert plan.problem is None
    paths = {file.path for file in plan.added}, {file.path for file in plan.removed}
    assert not paths[0] & paths[1]
    assert files - paths[1] | paths[0] == start


def test_a_reversal_says_which_versions_it_cannot_undo() -> None:
    versions = [
        Version(9, (AddedFile("kept", 1),)),
        Version(8, (AddedFile("rewritten", 1),)),
        Version(7, (), (RemovedFile("vacuumed", size=1),)),
    ]
    plan = plan_reversal(versions, {"kept", "compacted"}, lambda _: False)
    assert [file.path for file in plan.removed] == ["kept"]
    assert plan.problem is not None
    assert "version(s) 8 " in plan.problem
    assert plan.missing == ("vacuumed",)


def test_what_a_restore_took_out_and_an_older_version_added_is_not_missing() -> None:
    # All of it is abandoned now: the rows are written again.
    undone = Version(9, (AddedFile("new", 1),), (RemovedFile("vacuumed", size=1),))
    versions = [undone, Version(5, (AddedFile("vacuumed", 1),))]
    plan = plan_reversal(versions, {"new"}, lambda _: False)
    assert [file.path for file in plan.removed] == ["new"]
    assert (plan.added, plan.problem, plan.missing) == ((), None, ())


def test_a_file_that_another_writer_brought_back_is_taken_out_if_it_was_not_there_before() -> (
    None
):
    versions = [
        Version(9, (), (RemovedFile("f", size=1),)),
        Version(5, (AddedFile("f", 1),)),
    ]
    plan = plan_reversal(versions, {"f"}, lambda _: True)
    assert [file.path for file in plan.removed] == ["f"]


def test_files_with_deletion_vectors_are_rewritten_by_others() -> None:
    vector = msgspec.Raw(b'{"storageType": "u"}')
    later = Version(9, (AddedFile("f", 1),))  # another writer has deleted rows of it since
    plan = plan_reversal([later], {"f"}, lambda _: True, vectored={"f"})
    assert (plan.added, plan.removed) == ((), ())
    assert "version(s) 9" in (plan.problem or "")
    back = Version(8, (), (RemovedFile("f", size=1),))  # and this one it had added again
    plan = plan_reversal([back], {"f"}, lambda _: True, vectored={"f"})
    assert "version(s) 8" in (plan.problem or "")
    own = Version(7, (AddedFile("f", 1, deletion_vector=vector),))
    plan = plan_reversal([own], {"f"}, lambda _: True)
    assert (plan.added, plan.removed) == ((), ())
    assert "version(s) 7" in (plan.problem or "")
    # Added again, it would have the deleted rows: it cannot be put back.
    own = Version(7, (), (RemovedFile("g", size=1, deletion_vector=vector),))
    plan = plan_reversal([own], {"f"}, lambda _: True)
    assert (plan.added, plan.removed, plan.missing) == ((), (), ("g",))


def a_version(
    number: int, added: str, removed: str, operation: str = "WRITE", *, moves: bool = False
) -> Version:
    """Return a version of another writer; its files have names of one letter."""
    return Version(
        number,
        tuple(AddedFile(path, 1, data_change=not moves) for path in added),
        tuple(RemovedFile(path, data_change=not moves) for path in removed),
        info=CommitInfo(operation),
    )


@pytest.mark.parametrize(
    ("others", "active", "fate"),
    [
        ([a_version(3, "", "f", "DELETE")], "", Fate.GONE),
        ([a_version(3, "a", "f", "RESTORE")], "a", Fate.GONE),
        ([a_version(3, "c", "f", moves=True)], "c", Fate.MOVED),
        ([a_version(3, "u", "f", "UPDATE")], "u", Fate.REWRITTEN),
        (
            [a_version(3, "c", "fa", moves=True), a_version(4, "d", "c", moves=True)],
            "d",
            Fate.MOVED,
        ),
        ([a_version(3, "c", "f", moves=True), a_version(4, "u", "c")], "u", Fate.REWRITTEN),
        ([a_version(3, "u", "f"), a_version(4, "c", "u", moves=True)], "c", Fate.REWRITTEN),
        (
            [a_version(3, "c", "f", moves=True), a_version(4, "a", "c", "RESTORE")],
            "a",
            Fate.GONE,
        ),
        ([a_version(3, "u", "f"), a_version(4, "", "u")], "", Fate.GONE),
        ([a_version(3, "uv", "f"), a_version(4, "", "u")], "v", Fate.REWRITTEN),
        ([], "", Fate.REWRITTEN),
    ],
)
def test_the_version_that_removed_a_file_tells_where_its_rows_are(
    others: list[Version], active: str, fate: Fate
) -> None:
    assert Fates(reversed(others), set(active)).find("f", 2) is fate


def test_the_fate_of_a_file_is_told_however_often_its_rows_were_written_anew() -> None:
    # A table of twenty files that another writer rewrites as a whole two thousand times.
    others = [
        Version(
            number,
            tuple(AddedFile(f"{number}-{n}", 1, data_change=False) for n in range(20)),
            tuple(RemovedFile(f"{number - 1}-{n}", data_change=False) for n in range(20)),
        )
        for number in range(3, 2_003)
    ]
    fates = Fates(reversed(others), {f"2002-{n}" for n in range(20)})
    assert fates.find("2-7", 2) is Fate.MOVED


def test_what_only_moves_rows_is_not_reversed() -> None:
    moved = Version(
        3,
        (AddedFile("new", 1, data_change=False),),
        (RemovedFile("old", data_change=False),),
    )
    plan = plan_reversal([moved], {"new"}, lambda _: True)
    assert (plan.added, plan.removed, plan.problem) == ((), (), None)


def a_log(*marks: dict[str, object]) -> TableLog:
    """Return a log with a version for each mark, from version 0 on."""
    entries = {
        entry_path(number): json.dumps({"commitInfo": {"penstock": mark}}).encode()
        for number, mark in enumerate(marks)
    }
    return TableLog(MemoryStore(entries))


def mark(epoch: int, **more: object) -> dict[str, object]:
    return {"app": "a", "epoch": epoch, **more}


def numbers_of(log: TableLog, newest: int, epochs: tuple[int, int]) -> list[int]:
    found = log.read_marked(newest, "a", epochs)
    assert found.is_whole
    return [version.number for version in found.versions]


def test_a_version_that_undoes_is_undone_with_the_epoch_it_undoes_for() -> None:
    # Epoch 2 was restored, then 4 and 5 were undone for epoch 6.
    log = a_log(mark(2), mark(4), mark(5), mark(5, undoes_for=6), mark(6))
    assert numbers_of(log, 4, (6, 7)) == [4, 3]
    assert numbers_of(log, 4, (5, 7)) == [4, 3, 2]
    assert numbers_of(log, 4, (3, 7)) == [4, 3, 2, 1]
    assert numbers_of(log, 4, (7, 8)) == []
    # Before its merge epoch 6 finds its own undoing, which cancels what is to be undone.
    assert numbers_of(log, 3, (3, 6)) == [3, 2, 1]


def test_versions_that_the_table_went_back_behind_count_for_nothing() -> None:
    entries: list[dict[str, Any]] = [{"penstock": mark(epoch)} for epoch in (1, 2, 3, 4)]
    entries += [{"operation": "RESTORE", "operationParameters": {"version": "1"}}]
    entries += [{"penstock": mark(5)}]
    store = {
        entry_path(number): json.dumps({"commitInfo": entry}).encode()
        for number, entry in enumerate(entries)
    }
    log = TableLog(MemoryStore(store))
    assert numbers_of(log, 5, (2, 6)) == [5, 1]
    assert numbers_of(log, 4, (2, 6)) == [1]


def test_marks_without_it_are_read_and_written_as_before() -> None:
    log = a_log(mark(2), mark(4), mark(5), mark(5), mark(6))
    assert numbers_of(log, 4, (6, 7)) == [4]
    assert numbers_of(log, 4, (5, 7)) == [4, 3, 2]
    assert numbers_of(log, 3, (3, 6)) == [3, 2, 1]
    assert msgspec.to_builtins(Mark("a", 6)) == mark(6)


def test_a_log_entry_that_is_none_is_named_with_its_line() -> None:
    good = b'{"add": {"path": "day=a%20b/x.parquet", "size": 3, "partitionValues": {}}}'
    assert decode_version(4, good, "u").added[0].path == "day=a b/x.parquet"
    with pytest.raises(CorruptStateError, match=r"version 4 .* line 2 of its log entry"):
        decode_version(4, good + b"\n{no json", "u")


def test_bounds_of_times_are_read_as_all_writers_write_them() -> None:
    for text in ("1970-01-01T00:00:01.500Z", "1970-01-01T00:00:01.500000+00:00"):
        stats = f'{{"minValues": {{"at": "{text}"}}, "maxValues": {{"at": "{text}"}}}}'
        assert read_bound(stats, "at", is_upper=False) == 1_500_000
        # A bound that was cut to milliseconds may hide up to 999 microseconds.
        assert read_bound(stats, "at", is_upper=True) == 1_500_999
    assert read_bound('{"minValues": {"at": 3}}', "at", is_upper=False) is None
    assert read_bound(None, "at", is_upper=False) is None


def waiting(
    version: int, path: str, low: int | None = None, high: int | None = None
) -> WaitingFile:
    return WaitingFile(version, RowsAre.ADDED, path, 1, {}, low, high)


def test_a_version_is_left_behind_when_all_its_files_are_begun() -> None:
    place = Place("id", 3, 2)
    files = [waiting(3, "a"), waiting(3, "b"), waiting(5, "c")]
    assert find_upto(place, 6, files, frozenset()) == 2
    assert find_upto(place, 6, files, frozenset({files[0].name})) == 2
    assert find_upto(place, 6, files, frozenset({f.name for f in files[:2]})) == 4
    assert find_upto(place, 6, files, frozenset({f.name for f in files})) == 6


def test_ended_splits_of_versions_left_behind_are_forgotten_but_the_latest() -> None:
    names = [waiting(v, "x").name for v in (3, 4, 5)]
    known = {
        names[0]: SplitState(ended=True, max_event_time_micros=9),
        names[1]: SplitState(ended=True, max_event_time_micros=8),
        names[2]: SplitState(ended=True),
    }
    assert find_forgotten(known, Place("id", 3, 4)) == (names[1],)


def test_a_file_that_waits_holds_event_time_back_only_if_it_may_be_older() -> None:
    first, inside, later = (
        waiting(3, "a", 0, 10),
        waiting(3, "b", 5, 20),
        waiting(3, "c", 21, 30),
    )
    next_version, unknown = waiting(4, "d", 0, 1), waiting(3, "e")

    def is_held(begun: list[WaitingFile], all_files: list[WaitingFile]) -> bool:
        return is_watermark_held(all_files, frozenset(f.name for f in begun), None)

    assert is_held([first], [first, inside, later])
    assert not is_held([first, inside], [first, inside, later])
    assert not is_held([first], [first, next_version])
    assert is_held([first], [first, unknown])
    assert is_watermark_held([first, later], frozenset({first.name}), 25)


def test_versions_that_add_and_remove_rows_are_stretches_of_their_own() -> None:
    kinds = {3: "++", 4: "+", 5: "-+", 6: "~", 7: "~~", 8: "--", 9: "-", 10: "+", 11: "+-"}
    files = [
        WaitingFile(version, RowsAre(sign), f"{place}.parquet", 1, {})
        for version, signs in reversed(kinds.items())
        for place, sign in enumerate(signs)
    ]
    left = [LeftFile(file.name, file.version, file.rows, file) for file in files]
    found = [
        ([(file.version, file.name[-9]) for file in stretch.files], stretch.may_be_cut)
        for stretch in to_stretches(left)
    ]
    assert found == [
        ([(3, "0"), (3, "1"), (4, "0")], True),
        ([(5, "0"), (5, "1")], False),
        ([(6, "0")], False),
        ([(7, "0"), (7, "1")], False),
        ([(8, "0"), (8, "1"), (9, "0")], True),
        ([(10, "0")], True),
        ([(11, "0"), (11, "1")], False),
    ]


def test_a_split_of_another_source_is_refused() -> None:
    with pytest.raises(UserError, match="another source was read under this name"):
        read_name("bids/mon.jsonl")


def test_options_of_stores_are_those_of_the_client() -> None:
    options = {"path_style": True, "allow_http": True, "region": "x", "max_retries": 3}
    assert to_client_options("s3://bucket/table", options) == {
        "virtual_hosted_style_request": "false",
        "allow_http": "true",
        "region": "x",
        "max_retries": "3",
        "conditional_put": "etag",
    }
    with pytest.raises(UserError, match="is a function"):
        to_client_options("s3://bucket/table", {"credential_provider": print})


def test_without_the_client_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UserError, match=r"pip install 'penstock\[delta\]'"):
        pen.delta("table").source_spec()


def test_the_client_library_is_loaded_only_when_a_table_is_opened() -> None:
    program = (
        "import penstock as pen, penstock.catalog, sys\n"
        "pen.Pipeline('p').read('r', pen.list_source([{'n': 1}])).write('o', pen.delta('t'))\n"
        "assert 'deltalake' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
