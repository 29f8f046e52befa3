"""Commits of operators under test: what epochs staged, and handing it to `handle_commit`."""

from collections.abc import Mapping
from typing import TypeAlias

from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, PenstockError, UserCodeError, UserError
from penstock.graph.logical import Node
from penstock.operators.context import CommitContext
from penstock.operators.operator import ArrowOperator
from penstock.testing.chain_subtasks import JOB, ChainRun, ChainSubtasks

CommitData: TypeAlias = Mapping[str, Mapping[int, bytes]]
"""By table and subtask."""


class ChainCommits:
    """What was staged so far. A commit runs on a new instance, as it does on a driver."""

    def __init__(self, subtasks: ChainSubtasks) -> None:
        self._subtasks = subtasks
        self._staged: dict[int, dict[OperatorId, dict[str, dict[int, bytes]]]] = {}
        self._open: set[int] = set()

    @property
    def staged(self) -> dict[int, CommitData]:
        """What the last operator staged, by epoch."""
        last = self._subtasks.nodes[-1].operator
        return {epoch: of[last] for epoch, of in self._staged.items() if last in of}

    def note(self, run: ChainRun) -> None:
        """Keep what an epoch staged."""
        epoch = self._subtasks.state.epoch
        for (operator, index), report in run.reports.items():
            for table, data in report.checkpoint.metadata.commit_data.items():
                by_operator = self._staged.setdefault(epoch, {})
                tables = by_operator.setdefault(operator, {})
                tables.setdefault(table, {})[index] = data
                self._open.add(epoch)

    def commit(self, epoch: int | None = None) -> None:
        """Commit an epoch, or all open ones in order."""
        if epoch is not None and epoch not in self._staged:
            raise UserError(
                f"epoch {epoch} staged nothing to commit; these did: "
                f"{', '.join(map(str, self._staged)) or 'none'}",
                code=ErrorCode.INVALID_NUMBER,
            )
        for number in sorted(self._open) if epoch is None else [epoch]:
            for node in self._subtasks.nodes:
                data = self._staged[number].get(node.operator)
                if data is not None:
                    self._commit(node, Epoch(number), data)
            self._open.discard(number)

    def _commit(self, node: Node, epoch: Epoch, data: CommitData) -> None:
        sink = self._subtasks.registry.construct(node.spec).operator
        assert isinstance(sink, ArrowOperator)  # noqa: S101 (sources stage nothing)
        task = TaskInfo(JOB, node.operator, Subtask(0, node.parallelism))
        try:
            sink.handle_commit(epoch, data, CommitContext(task, self._subtasks.store))
        except PenstockError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"operator {node.operator!r} raised {type(error).__name__} in handle_commit "
                f"of epoch {epoch}: {error}",
                operator=str(node.operator),
                epoch=int(epoch),
                hook="handle_commit",
            ) from error
        finally:
            sink.release()
