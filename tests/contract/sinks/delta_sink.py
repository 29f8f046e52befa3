"""The Delta sink in the contract suite of sinks: calls to its store and to its table are harmed.

Both are counted together. A commit that lands late is made on the version that was open then, so it
meets what others have committed since.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from typing_extensions import override

from penstock.connectors.delta.connector import delta
from penstock.connectors.delta.sink import DeltaSink, DeltaSinkConfig
from penstock.core.clock import new_token
from penstock.errors import ExternalError, PenstockError, StorageError, UnknownOutcomeError
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.object_store import ObjectInfo
from penstock.state.storage.watched import ForwardingStore
from penstock.testing import CrashError
from tests.builders.delta_job import FaultyTables
from tests.builders.profile import by_profile
from tests.contract.sinks.sink_under_test import DEATHS, Harm, Line, Row, Strike


class _Process:
    """One process: numbers its calls, and harms those that the strike means."""

    def __init__(self, strike: Strike | None) -> None:
        self.calls = 0
        self.late: list[Callable[[], Any]] = []
        self._strike = strike
        self._is_dead = False

    def call(self, name: str, act: Callable[[], Any]) -> Any:
        """Make a call to the table."""
        return self.make(act, is_write=name != "open", refused=ExternalError)

    def read_ahead(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return what is merged next; a merge that lands late has read its rows in time."""
        strike = self._strike
        if strike is None or strike.harm is not Harm.LANDS_LATE:
            return rows
        if strike.at != self.calls + 1:
            return rows
        # These reads are a part of the merge: they are neither counted nor harmed.
        calls, self._strike = self.calls, None
        held = rows.read_all()
        self.calls, self._strike = calls, strike
        return held.to_reader()

    def make(
        self, act: Callable[[], Any], *, is_write: bool, refused: type[PenstockError]
    ) -> Any:
        """Make a call, or what the harm makes of it."""
        if self._is_dead:
            raise CrashError("the process is dead")
        self.calls += 1
        strike = self._strike
        if strike is None or strike.at not in (None, self.calls):
            return act()
        if strike.harm is Harm.SLEEPS:
            # The client reads what it merges on a thread of its own, on which no other call of
            # the client may be made.
            with ThreadPoolExecutor(1) as others:
                others.submit(strike.meanwhile).result()
            return act()
        self._is_dead = strike.harm in DEATHS
        if strike.harm is Harm.DIES_AFTER or (strike.harm is Harm.FAILS_AFTER and is_write):
            act()
        if self._is_dead:
            raise CrashError("killed in a call")
        if strike.harm is Harm.FAILS or not is_write:
            raise refused("the call failed, by design of the test")
        if strike.harm is Harm.LANDS_LATE:
            self.late.append(act)
        raise UnknownOutcomeError("no answer, by design of the test")


class _HarmedStore(ForwardingStore):
    """The store of the data files, in one process."""

    def __init__(self, store: LocalStore, process: _Process) -> None:
        super().__init__(store)
        self._process = process

    def _make(self, act: Callable[[], Any], *, is_write: bool) -> Any:
        return self._process.make(act, is_write=is_write, refused=StorageError)

    @override
    def read(self, path: str) -> bytes | None:
        found: bytes | None = self._make(lambda: self.store.read(path), is_write=False)
        return found

    @override
    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        found: bytes | None = self._make(
            lambda: self.store.read_range(path, start, length), is_write=False
        )
        return found

    @override
    def size(self, path: str) -> int | None:
        found: int | None = self._make(lambda: self.store.size(path), is_write=False)
        return found

    @override
    def create(self, path: str, data: bytes) -> bool:
        made: bool = self._make(lambda: self.store.create(path, data), is_write=True)
        return made

    @override
    def delete(self, path: str) -> None:
        self._make(lambda: self.store.delete(path), is_write=True)

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found: Iterator[ObjectInfo] = self._make(
            lambda: self.store.list(prefix), is_write=False
        )
        return found


class DeltaUnderTest:
    """The Delta sink; a reader opens the table as everybody does."""

    merges = False

    cannot: Mapping[Line, str] = {}
    harms: Sequence[Harm] = tuple(Harm)
    cases = by_profile(default=4, ci=6, nightly=1_000_000)

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder / new_token()
        self._store = LocalStore(self._folder, durable=False)
        self._options = options
        self._begun: list[_Process] = []
        self.arm()

    def connect(self, registry: Registry) -> OperatorSpec:
        kind = f"delta-{new_token()}"

        def build(config: DeltaSinkConfig) -> DeltaSink:
            process: Any = self._begun[-1]
            return DeltaSink(
                config,
                lambda _url, **_options: _HarmedStore(self._store, process),
                lambda url, options: FaultyTables(process, url, options),
            )

        registry.add(kind, DeltaSinkConfig, build)
        return OperatorSpec(kind, delta(self._folder, **self._options).sink_spec().config)

    def arm(self, strike: Strike | None = None) -> None:
        self._begun.append(_Process(strike))

    @property
    def calls(self) -> int:
        return self._begun[-1].calls

    def settle(self) -> None:
        for process in self._begun:
            late, process.late = process.late, []
            for act in late:
                act()

    def rows(self) -> list[Row]:
        if not DeltaTable.is_deltatable(str(self._folder)):
            return []
        return list(DeltaTable(str(self._folder)).to_pyarrow_table().to_pylist())


class MergedDeltaUnderTest(DeltaUnderTest):
    """The Delta sink that merges: a merge on a version that is not the newest would double keys."""

    merges = True
    cases = by_profile(default=2, ci=5, nightly=1_000_000)
