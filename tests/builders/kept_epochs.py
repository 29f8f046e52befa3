"""Reads kept epochs of a job from outside, opens tables on them, and mounts small disks.

`small_disk` mounts a file system in memory for one test: it can be full or read-only.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.clock import new_token
from penstock.core.ids import (
    Epoch,
    Generation,
    JobId,
    KeyRange,
    OperatorId,
    Subtask,
    TaskInfo,
    Token,
)
from penstock.state.checkpoints import JobCheckpoints, ParquetBackend
from penstock.state.files.cache import FileCache
from penstock.state.files.state_file import StateFile
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Frontier, TableEnvironment
from penstock.state.tables.table import files_of as listed_files
from penstock.state.tables.table_manager import TableManager
from tests.unit.state.tables.table_builders import NO_CACHE

Metadata = state_pb2.OperatorCheckpointMetadata


def an_attempt(
    store: ObjectStore,
    task: TaskInfo,
    *,
    generation: Generation | None = None,
    token: Token | None = None,
    cache: FileCache = NO_CACHE,
) -> TableEnvironment:
    """Where one attempt of one subtask finds and writes its tables."""
    return TableEnvironment(
        task, generation or Generation(1), token or new_token(), store, cache
    )


def read_metadata(
    store: ObjectStore, manifest: CheckpointManifest | None
) -> dict[str, dict[int, Metadata]]:
    """The metadata of every subtask, by operator and index."""
    backend = ParquetBackend(store)
    return {
        str(entry.operator): {
            index: backend.read_operator_checkpoint_metadata(found)
            for index, found in enumerate(entry.subtasks)
        }
        for entry in (() if manifest is None else manifest.operators)
    }


def frontier_of(manifest: CheckpointManifest | None) -> Frontier:
    """The time by which the state of a checkpoint is judged."""
    if manifest is None:
        return Frontier()
    watermark = manifest.operators[0].input_watermarks[0].event_time_micros
    return Frontier(watermark, manifest.processing_time_micros)


def files_of(metadata: Metadata, table: str) -> tuple[StateFile, ...]:
    """The list of one subtask's table."""
    if table not in metadata.table_checkpoint_metadata:
        return ()
    return listed_files(metadata.table_checkpoint_metadata[table], table=table)


def manifest_of(checkpoints: JobCheckpoints, epoch: int) -> CheckpointManifest:
    """The manifest of a kept epoch; one that is not kept is refused."""
    ref = checkpoints.plan_restore(Epochs(Epoch(epoch))).ref
    return checkpoints.manifest(ref)


def load_epoch(
    checkpoints: JobCheckpoints,
    operator: str,
    specs: Sequence[TableSpec],
    epoch: int,
    *,
    parallelism: int = 1,
    cache: FileCache = NO_CACHE,
) -> list[TableManager]:
    """Open an operator's tables as of a kept epoch, at any parallelism."""
    manifest = manifest_of(checkpoints, epoch)
    restored = read_metadata(checkpoints.store, manifest)[operator]
    managers = []
    for index in range(parallelism):
        task = TaskInfo(
            JobId(checkpoints.job), OperatorId(operator), Subtask(index, parallelism)
        )
        environment = an_attempt(checkpoints.store, task, cache=cache)
        managers.append(TableManager.load(environment, specs, restored))
        managers[-1].begin_epoch(frontier_of(manifest))
    return managers


def count_runs(files: Sequence[StateFile]) -> int:
    """Count the runs of a list: neighbours with disjoint visible ranges are one sorted run."""
    runs = 0
    covered: list[KeyRange] = []
    for file in files:
        if not covered or any(file.visible.overlaps(part) for part in covered):
            runs += 1
            covered = []
        covered.append(file.visible)
    return runs


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of that size, or skip the test where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system to fill up or to make read-only")
    command = [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here, even to root")
    try:
        yield
    finally:
        # Lazily: what the test still maps goes when it lets go of it.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change a mounted file system: `ro`, `rw`, `size=…`."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
