"""Compaction of keyed files: neighbours of a list become one sorted run of equal meaning.

Works in bounded memory: all inputs are sorted by hash, so they are merged slice by slice.
The newest version of a key survives. If that is a tombstone or an expired row it goes too,
but only where the inputs hold the oldest files of their key range; anywhere else it stays
and keeps hiding what is older.
"""

from collections.abc import Sequence
from functools import partial

from penstock.core.ids import TableName
from penstock.core.key_range import KeyRange
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.files.writer import StateFileWriter
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.keyed_expiry import frontier_micros
from penstock.state.tables.keyed_file_run import FileRun
from penstock.state.tables.keyed_merge import live_only, merge_runs
from penstock.state.tables.keyed_run import OpenSegments
from penstock.state.tables.keyed_schema import EXPIRES_AT, KeyedSchema
from penstock.state.tables.table import CompactionConfig


def compact_files(
    plan: CompactionPlan,
    schema: KeyedSchema,
    compaction: CompactionConfig,
    *,
    state_version: int,
    state_type: type | None = None,
) -> tuple[StateFile, ...]:
    """Write the fold of the plan's inputs as files of the current version.

    Together the outputs see exactly the hashes that the inputs saw. There is at least one
    output, even if no row survives, because the list must say what was replaced.
    """
    environment = compaction.environment
    instant = frontier_micros(schema.ttl, compaction.frontier)
    outputs: list[StateFile] = []
    for stretch in join_ranges([file.visible for file in plan.inputs]):
        writer = StateFileWriter(
            environment.store,
            partial(_output_path, schema, compaction, len(outputs)),
            schema.stored,
            plan.describe(
                state_version,
                visible=stretch,
                time_column=None if schema.ttl is None else schema.ttl.time_column,
                expiry_column=EXPIRES_AT,
            ),
            target_bytes=compaction.target_file_bytes,
        )
        runs = [
            FileRun(
                file,
                schema,
                environment,
                OpenSegments(limit_bytes=0),
                state_version=state_version,
                state_type=state_type,
            )
            for file in restrict(plan.inputs, stretch)
        ]
        for rows in merge_runs(runs, schema.key_columns):
            writer.write(live_only(rows, instant) if plan.drops_deleted else rows)
        outputs += writer.finish()
    return tuple(outputs)


def _output_path(
    schema: KeyedSchema, compaction: CompactionConfig, first: int, part: int
) -> str:
    name = TableName(schema.table_name)
    return compaction.environment.path_for(
        name, compaction.epoch, compacted=True, part=first + part
    )


def join_ranges(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Return the union of some ranges as disjoint ones that do not touch, ascending."""
    joined: list[KeyRange] = []
    for part in sorted(ranges):
        if joined and part.start <= joined[-1].end:
            joined[-1] = KeyRange(joined[-1].start, max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return joined
