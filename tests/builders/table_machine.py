"""TableMachine: what happens to a keyed table between two calls, next to a model of its rows."""

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.state.tables.expiry import TimeToLive, frontier_micros
from penstock.state.tables.table import Frontier
from tests.unit.state.tables.keyed_harness import KeyedHarness

ODD_NAN = float(np.uint64(0xFFF8_0000_0000_0001).view(np.float64))
"""Equal to every other NaN as a key, though its bytes differ."""


class TableMachine(RuleBasedStateMachine):
    """Checkpoints, crashes, restores at any parallelism, compactions, and time that goes on.

    A subclass declares the table in an `initialize` rule by `begin`, and adds reads and writes.
    The model is made of dictionaries; `durable` is what a crash leaves of it.
    """

    model: Any
    durable: Any
    harness: KeyedHarness

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, schema: Any, **options: Any) -> None:
        """Make an empty table."""
        self.harness = KeyedHarness(self.folder, schema, **options)
        self.ttl: TimeToLive | None = schema.ttl
        self.model, self.durable = {}, {}
        self.durable_frontier = self.frontier = Frontier()
        self.is_dirty = False

    def live_values(self) -> list[int]:
        """Return the values of all rows of the model that have not expired."""
        raise NotImplementedError

    @rule(turned=st.booleans())
    def checkpoint(self, turned: bool) -> None:
        written = self.harness.checkpoint(turned=turned)
        assert self.is_dirty or written == 0
        self.durable, self.durable_frontier = deepcopy(self.model), self.frontier
        self.is_dirty = False

    @rule(parallelism=st.integers(1, 4), cold=st.booleans())
    def crash_and_restore(self, parallelism: int, cold: bool) -> None:
        if cold:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.model, self.frontier = deepcopy(self.durable), self.durable_frontier
        self.is_dirty = False
        self.harness.restore(parallelism)
        self.harness.advance(self.frontier)

    @precondition(lambda self: not self.is_dirty)
    @rule(min_files=st.integers(2, 4), target_file_bytes=st.sampled_from([1, 1 << 20]))
    def compact(self, min_files: int, target_file_bytes: int) -> None:
        now = self.frontier
        self.harness.frontier = self.durable_frontier
        self.harness.compact(min_files=min_files, target_file_bytes=target_file_bytes)
        self.harness.frontier = now

    @rule(micros=st.integers(0, 12))
    def advance(self, micros: int) -> None:
        watermark = self.frontier.watermark_micros
        self.frontier = Frontier(
            micros if watermark is None else watermark + micros,
            self.frontier.processing_time_micros + micros,
        )
        self.harness.advance(self.frontier)

    @invariant()
    def a_scan_equals_the_model(self) -> None:
        if hasattr(self, "model"):
            found = sorted(row["value"] for row in self.harness.scan())
            assert found == sorted(self.live_values())

    def expiry_of(self, time: int) -> int | None:
        """Return when a row that is written now expires."""
        if self.ttl is None:
            return None
        by_event_time = self.ttl.time_column is not None
        start = time if by_event_time else self.frontier.processing_time_micros
        return start + self.ttl.micros

    def is_live(self, expiry: int | None) -> bool:
        """Return whether a row with such an expiry is there."""
        instant = frontier_micros(self.ttl, self.frontier)
        return expiry is None or instant is None or expiry > instant
