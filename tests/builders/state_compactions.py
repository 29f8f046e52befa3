"""Compactions of a miniature job: results that wait for the epoch they are swapped in by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.ids import Epoch
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import ProtocolRules
from penstock.state.tables.operator_tables import apply_compaction, compact_subtask
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import CompactionConfig, TableEnvironment
from tests.builders.kept_epochs import Metadata
from tests.builders.state_subtasks import Task


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction, to be swapped in by epoch `due`."""

    operator: str
    tables: Mapping[str, state_pb2.TableCheckpointMetadata]
    due: int
    is_urgent: bool


class Compactions:
    """What was merged and waits. Known to the driver only: a new one starts without."""

    def __init__(self) -> None:
        self._waiting: list[Compacted] = []

    def run(
        self,
        operator: str,
        specs: Sequence[TableSpec],
        environment: TableEnvironment,
        config: CompactionConfig,
        metadata: Mapping[int, Metadata],
        *,
        due: int,
        is_urgent: bool = False,
    ) -> bool:
        """Merge what is due in one subtask; tell whether anything was."""
        done = compact_subtask(specs, environment, config, metadata)
        if done:
            self._waiting.append(Compacted(operator, done, due, is_urgent))
        return bool(done)

    def swap(
        self, metadata: dict[str, dict[int, Metadata]], epoch: Epoch, rules: ProtocolRules
    ) -> set[Task]:
        """Swap in what is due, urgent ones first; return the subtasks whose metadata changed."""
        swapped: set[Task] = set()
        due = [one for one in self._waiting if one.due == epoch]
        for one in sorted(due, key=lambda one: not one.is_urgent):
            parts = metadata[one.operator]
            changed = apply_compaction(parts, one.tables, epoch=epoch, rules=rules)
            parts.update(changed)
            swapped |= {(one.operator, index) for index in changed}
        return swapped
