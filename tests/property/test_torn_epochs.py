"""A torn epoch is always caught and never published.

Whole jobs run on an exchange that repeats, retries, loses, duplicates and recomputes. Their
output must be that of an undisturbed run, and each checkpoint must be made of one attempt of
every task. The checks behind this are tried one by one in `test_receipt_laws`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.in_process import Chaos, Mischief
from penstock.runtime.plan.physical import compile_graph
from penstock.state.checkpoints import ParquetBackend
from penstock.state.proto import state_pb2 as pb
from tests.builders.pipeline_graphs import SHAPES, Shape
from tests.builders.pipeline_job import PipelineJob
from tests.builders.profile import by_profile

SHAPE_NAMES = [shape.name for shape in SHAPES]
RUNS = by_profile(default=6, ci=12, nightly=400)
"""How many whole jobs a property runs, by profile."""


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    shape=st.sampled_from(SHAPES),
    rate=st.sampled_from([0.02, 0.1, 0.3]),
    seed=st.integers(0, 10_000),
    kinds=st.lists(st.sampled_from(Mischief), min_size=1, max_size=5, unique=True),
    parallelism=st.tuples(*[st.integers(1, 3)] * 3),
)
def test_whatever_the_exchange_does_every_row_counts_once(
    shape: Shape,
    rate: float,
    seed: int,
    kinds: list[Mischief],
    parallelism: tuple[int, int, int],
) -> None:
    with TemporaryDirectory() as folder:
        job = PipelineJob(shape, Path(folder))
        chaos = Chaos(rate, seed, tuple(kinds))
        job.finish(parallelism=parallelism, chaos=chaos, seed=seed)
        check_attempts(job, parallelism)


def check_attempts(job: PipelineJob, parallelism: tuple[int, int, int]) -> None:
    """Of each task, all state files of an epoch come from one attempt."""
    plan = compile_graph(job.shape.graph(job.book_name, parallelism))
    chain_of = {name: c.number for c in plan.chains for name in c.operators}
    backend = ParquetBackend(job.inner)
    tokens: dict[tuple[int, int, int], set[str]] = {}
    for epoch in job.checkpoints().epochs():
        manifest = job.checkpoints().manifest(epoch.record.ref)
        slot = f"/{int(manifest.ref.epoch):010d}/"
        for entry in manifest.operators:
            for index, ref in enumerate(entry.subtasks):
                metadata = backend.read_operator_checkpoint_metadata(ref)
                for table in metadata.table_checkpoint_metadata.values():
                    listed = pb.KeyedTableSubtaskCheckpointMetadata.FromString(table.data)
                    own = [f"-{index:03d}-" in file.path for file in listed.files]
                    task = (int(manifest.ref.epoch), chain_of[entry.operator], index)
                    tokens.setdefault(task, set()).update(
                        file.path.removesuffix(".parquet")[-32:]
                        for file, is_own in zip(listed.files, own, strict=True)
                        if is_own and slot in file.path and "compacted" not in file.path
                    )
    assert any(tokens.values())
    assert all(len(attempts) <= 1 for attempts in tokens.values())


@pytest.mark.slow
@pytest.mark.parametrize("mischief", Mischief)
@pytest.mark.parametrize("shape", SHAPES[1:3], ids=SHAPE_NAMES[1:3])
def test_one_kind_of_mischief(shape: Shape, mischief: Mischief, tmp_path: Path) -> None:
    job = PipelineJob(shape, tmp_path)
    chaos = Chaos(0.15, seed=7, kinds=(mischief,))
    status = job.finish(chaos=chaos)
    assert len(chaos.done) > 5
    # A task that ran twice of which only the second run was seen is nothing to worry about.
    assert (status.torn_epochs == 0) == (mischief is Mischief.RETRY)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_worker_in_which_every_task_runs_twice_gives_the_same(
    shape: Shape, tmp_path: Path
) -> None:
    # What the first run of a task leaves in the worker must not reach the second.
    job = PipelineJob(shape, tmp_path)
    status = job.finish(chaos=Chaos(1.0, kinds=(Mischief.RETRY,)))
    assert status.torn_epochs == 0
