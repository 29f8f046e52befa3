"""The executors' side of a miniature job: the tables of all subtasks, kept between epochs."""

from collections.abc import Mapping, Sequence

from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.state.files.cache import FileCache
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Frontier, TableEnvironment
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from tests.builders.kept_epochs import Metadata, an_attempt

JOB = JobId("job")
Specs = Mapping[str, Sequence[TableSpec]]
Task = tuple[str, int]
Work = Mapping[Task, SubtaskCheckpoint]


class Subtasks:
    """All subtasks of all operators. Managers are lost with `forget`, else they catch up."""

    def __init__(self, job: JobId, store: ObjectStore, cache: FileCache) -> None:
        self._job = job
        self.managers: dict[Task, TableManager] = {}
        self._store = store
        self._cache = cache
        self._attempts = 0

    def forget(self, *, beyond: int = 0) -> None:
        """Lose the managers of subtasks from number `beyond` on."""
        self.managers = {t: m for t, m in self.managers.items() if t[1] < beyond}

    def open(
        self,
        specs: Specs,
        metadata: Mapping[str, Mapping[int, Metadata]],
        parallelism: int,
        generation: Generation,
        frontier: Frontier,
    ) -> dict[Task, TableManager]:
        """Begin an epoch: kept managers catch up, the others load."""
        for operator, tables in specs.items():
            restored = metadata.get(operator, {})
            for task in [(operator, index) for index in range(parallelism)]:
                attempt = self.attempt(task, parallelism, generation)
                if task in self.managers:
                    self.managers[task].catch_up(attempt, restored)
                else:
                    self.managers[task] = TableManager.load(attempt, tables, restored)
                self.managers[task].begin_epoch(frontier)
        return self.managers

    def checkpoint(self, epoch: Epoch, watermark: int | None) -> Work:
        """Write every subtask's state files; nothing is acknowledged yet."""
        return {
            task: manager.checkpoint(epoch, epoch, watermark)
            for task, manager in self.managers.items()
        }

    def attempt(
        self, task: Task, parallelism: int, generation: Generation
    ) -> TableEnvironment:
        """Return a new attempt of a subtask: what it writes meets no older attempt's files."""
        self._attempts += 1
        operator, index = task
        return an_attempt(
            self._store,
            TaskInfo(self._job, OperatorId(operator), Subtask(index, parallelism)),
            generation=generation,
            token=Token(f"{generation:08x}{self._attempts:024x}"),
            cache=self._cache,
        )
