"""The Delta sink given changelogs: what it merges by key, what it appends, and what it refuses."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import penstock as pen
from penstock.errors import SchemaError, StateError, UserError
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    ABORT,
    CUT,
    Call,
    CrashError,
    Fault,
    FaultMode,
    LocalJob,
    ScriptedSource,
)


def table_of(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(folder)).to_pyarrow_table().sort_by("n").to_pylist()


def counts(folder: Path, words: list[str], **options: Any) -> None:
    """Run a job that keeps the number of rows per word in a table."""
    pipeline = pen.Pipeline("counts")
    source = pen.list_source([{"word": word} for word in words])
    changes = (
        pipeline.read("words", source).key_by("word").aggregate("count", n=pen.count())
    )
    changes.write("out", pen.delta(folder, **options))
    pipeline.run_in_process(str(folder.parent / "checkpoints-counts"))


def test_a_changelog_is_merged_by_its_key(tmp_path: Path) -> None:
    rows = pa.table({"word": ["a", "z"], "n": [7, 7]})
    write_deltalake(str(tmp_path / "table"), rows)
    counts(tmp_path / "table", ["a", "b", "a"])
    found = {row["word"]: row["n"] for row in table_of(tmp_path / "table")}
    assert found == {"a": 2, "b": 1, "z": 7}
    assert not list((tmp_path / "table" / "_staging").rglob("*.parquet"))


def test_a_changelog_is_appended_as_it_is_on_request(tmp_path: Path) -> None:
    counts(tmp_path / "table", ["a", "b", "a"], mode="append")
    found = {(row["change"], row["word"], row["n"]) for row in table_of(tmp_path / "table")}
    assert found == {("insert", "a", 2), ("insert", "b", 1)}


def test_a_table_of_changes_as_rows_is_not_merged_into(tmp_path: Path) -> None:
    counts(tmp_path / "table", ["a", "b"], mode="append")
    before = table_of(tmp_path / "table")
    with pytest.raises(SchemaError, match="it holds changes as rows"):
        counts(tmp_path / "table", ["a", "c"])
    assert table_of(tmp_path / "table") == before


def test_deletions_updates_and_null_keys_are_merged(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    rows = pa.table({"k": ["a", None, "z"], "n": [1, 2, 3]})
    write_deltalake(str(folder), rows, configuration={"delta.enableChangeDataFeed": "true"})
    script: list[Any] = [
        [("a", 10, False), (None, 20, False), ("c", 30, False), ("x", 1, False)],
        CUT,
        [("a", 11, False), ("c", 30, True), ("y", 1, False), ("y", 1, True)],
        CUT,
    ]
    given: Any = [
        step
        if step is CUT
        else [dict(zip(("k", "n", "gone"), r, strict=True)) for r in step]
        for step in script
    ]
    pipeline = pen.Pipeline("upserts")
    read = pipeline.read("rows", ScriptedSource({"0": given}))
    changes = read.from_upserts("table", key="k", deleted="gone")
    changes.write("out", pen.delta(folder))
    LocalJob(pipeline).run()
    assert {r["k"]: r["n"] for r in table_of(folder)} == {"a": 11, None: 20, "x": 1, "z": 3}
    feed: Any = pa.table(DeltaTable(str(folder)).load_cdf(starting_version=2))
    told = sorted((row["_change_type"], row["k"]) for row in feed.to_pylist())
    assert told == [("delete", "c"), ("update_postimage", "a"), ("update_preimage", "a")]


def test_a_merge_into_a_partitioned_table_keeps_its_partitions(tmp_path: Path) -> None:
    counts(tmp_path / "table", ["a", "b", "a"], partition_by=["word"])
    assert {r["word"]: r["n"] for r in table_of(tmp_path / "table")} == {"a": 2, "b": 1}
    assert (tmp_path / "table" / "word=a").is_dir()


def test_a_merge_adds_columns_that_the_table_may_get(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    write_deltalake(str(folder), pa.table({"word": ["a", "z"], "old": [1, 2]}))
    with pytest.raises(UserError, match="the table has no column 'n'"):
        counts(folder, ["a", "b"])
    counts(folder, ["a", "b"], evolve=True)
    found = DeltaTable(str(folder)).to_pyarrow_table().sort_by("word").to_pylist()
    assert found == [
        {"word": "a", "old": 1, "n": 1},
        {"word": "b", "old": None, "n": 1},
        {"word": "z", "old": 2, "n": None},
    ]


def test_a_table_that_takes_appends_only_is_not_merged_into(tmp_path: Path) -> None:
    rows = pa.table({"word": ["a"], "n": [7]})
    write_deltalake(
        str(tmp_path / "table"), rows, configuration={"delta.appendOnly": "true"}
    )
    with pytest.raises(UserError, match="takes appends only"):
        counts(tmp_path / "table", ["a"])


def test_names_of_columns_may_hold_anything(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("odd")
    source = pen.list_source([{"a b": 1, 'say "n".x': 2}, {"a b": 1, 'say "n".x': 3}])
    keyed = pipeline.read("rows", source).key_by("a b")
    keyed.aggregate("sum", n=pen.sum('say "n".x')).write("out", pen.delta(tmp_path / "t"))
    pipeline.run_in_process("memory:")
    assert table_of(tmp_path / "t") == [{"a b": 1, "n": 5}]


def test_rows_that_are_no_changelog_cannot_be_merged(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("plain")
    rows = pipeline.read("rows", pen.list_source([{"n": 1}]))
    rows.write("out", pen.delta(tmp_path / "table", mode="merge"))
    with pytest.raises(SchemaError, match='mode="merge" needs a changelog'):
        pipeline.run_in_process("memory:")


def test_merge_bytes_without_a_merge_is_refused_where_the_graph_is_built(
    tmp_path: Path,
) -> None:
    pipeline = pen.Pipeline("plain")
    rows = pipeline.read("rows", pen.list_source([{"n": 1}]))
    rows.write("out", pen.delta(tmp_path / "table", merge_bytes=1 << 20))
    with pytest.raises(SchemaError, match="merge_bytes= is for changelogs"):
        pipeline.graph()


def test_changes_that_are_merged_do_not_wait(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are for rows that are appended"):
        counts(tmp_path / "table", ["a"], min_bytes=1_000)


# ---- from appended to merged


class Upserts:
    """Jobs of one name and one source, whose epochs all change the key "a".

    After three of its five epochs the process dies, once.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        steps: list[Any] = []
        for n in range(5):
            steps += [[{"k": "a", "n": n}, {"k": f"k{n}", "n": n}], CUT]
        self._source = ScriptedSource({"0": [*steps[:6], ABORT, *steps[6:]]})

    def into(self, folder: Path, **options: Any) -> LocalJob:
        """Return the job that writes to a table like this."""
        pipeline = pen.Pipeline("upserts")
        changes = pipeline.read("rows", self._source).from_upserts("table", key="k")
        changes.write("out", pen.delta(folder, **options))
        return LocalJob(pipeline, store=self.store)


def test_changes_that_wait_to_be_appended_are_not_merged(tmp_path: Path) -> None:
    folder, upserts = tmp_path / "table", Upserts()
    appends = upserts.into(folder, mode="append", visible_after="1h")
    with pytest.raises(CrashError):
        appends.run()
    before = sorted(info.path for info in upserts.store.list(""))
    merges = upserts.into(folder, mode="merge")
    with pytest.raises(StateError, match="wait in the state of sink 'out' to be appended"):
        merges.run()
    # It was refused before the claim, so nothing is there that was not.
    assert sorted(info.path for info in upserts.store.list("")) == before
    assert not DeltaTable.is_deltatable(str(folder))
    # What the message says to do works: a stop writes the rows that wait.
    assert appends.run(epochs=1).phase is pen.JobPhase.STOPPED
    appended = table_of(folder)
    assert len([row for row in appended if row["change"] == "insert"]) == 5
    merged = upserts.into(tmp_path / "merged", mode="merge")
    assert merged.run().phase is pen.JobPhase.FINISHED
    found = {row["k"]: row["n"] for row in table_of(tmp_path / "merged")}
    assert found == {"a": 4, "k4": 4}


def test_changes_that_another_driver_lets_wait_behind_the_check_are_not_merged(
    tmp_path: Path,
) -> None:
    folder, upserts = tmp_path / "table", Upserts()
    appends = upserts.into(folder, mode="append", visible_after="1h")

    def run_the_other(_: Call) -> None:
        with pytest.raises(CrashError):
            appends.run()

    overtaken = Fault(
        FaultMode.DELAY, operation="create", path="*/claim", hook=run_the_other
    )
    merges = upserts.into(folder, mode="merge")
    with pytest.raises(StateError, match="wait in the state of sink 'out' to be appended"):
        merges.run(overtaken)
    assert not DeltaTable.is_deltatable(str(folder))
    # No epoch came of it: the job goes on as it was, and each change is appended once.
    assert appends.run().phase is pen.JobPhase.FINISHED
    inserted = [row["k"] for row in table_of(folder) if row["change"] == "insert"]
    assert sorted(inserted) == ["a", "k0", "k1", "k2", "k3", "k4"]


# ---- large merges


def test_merge_bytes_bounds_the_memory_of_a_merge_which_is_right_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    merge = DeltaTable.merge

    def noting(table: DeltaTable, *args: Any, **options: Any) -> Any:
        limits.append(options["max_spill_size"])
        return merge(table, *args, **options)

    monkeypatch.setattr(DeltaTable, "merge", noting)
    folder, count, merge_bytes = tmp_path / "table", 10_000, 6 << 20
    filling = "x" * 1_000
    old = pa.table(
        {"k": range(0, 2 * count, 2), "n": [-1] * count, "text": [filling] * count}
    )
    write_deltalake(str(folder), old)
    rows = pa.table({"k": range(count), "n": range(count), "text": [filling] * count})
    assert rows.nbytes > merge_bytes
    pipeline = pen.Pipeline("large")
    changes = pipeline.read("rows", pen.list_source(rows)).from_upserts("table", key="k")
    changes.write("out", pen.delta(folder, merge_bytes=merge_bytes))
    assert pipeline.run_in_process("memory:").phase is pen.JobPhase.FINISHED
    assert set(limits) == {merge_bytes}
    found = DeltaTable(str(folder)).to_pyarrow_table(columns=["k", "n"])
    wanted = dict.fromkeys(range(0, 2 * count, 2), -1) | {k: k for k in range(count)}
    assert found.num_rows == len(wanted)
    assert dict(zip(*found.to_pydict().values(), strict=True)) == wanted


def test_a_merge_that_needs_more_memory_says_so_and_goes_on_when_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a merge needs more depends on how the client's threads come to run.
    def exhausted(*_: Any, **__: Any) -> Any:
        raise DeltaError("Resources exhausted: no more for HashJoinInput")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "merge", exhausted)
        with pytest.raises(UserError, match="more memory than merge_bytes= allows"):
            counts(tmp_path / "table", ["a", "b", "a"], merge_bytes=1)
    counts(tmp_path / "table", ["a", "b", "a"], merge_bytes=1 << 28)
    found = {row["word"]: row["n"] for row in table_of(tmp_path / "table")}
    assert found == {"a": 2, "b": 1}
