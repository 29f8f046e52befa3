"""The sinks that ship and need no server, as the contract suite of sinks takes them."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.connectors.files.committed import read_committed
from penstock.connectors.files.connector import files
from penstock.connectors.files.sink import FilesSink, FilesSinkConfig
from penstock.connectors.memory import list_sink
from penstock.connectors.stdout import stdout
from penstock.core.clock import new_token
from penstock.errors import StorageError
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CrashError, Fault, FaultMode, FaultyStore, Lands
from tests.builders.profile import by_profile
from tests.contract.sinks.sink_under_test import DEATHS, Harm, Line, Row, Strike

STORE_FAULTS: Mapping[Harm, Fault] = {
    Harm.FAILS: Fault(FaultMode.FAIL_BEFORE),
    Harm.FAILS_AFTER: Fault(FaultMode.FAIL_AFTER),
    Harm.ANSWER_LOST: Fault(FaultMode.LOSE_RESPONSE, lands=Lands.NEVER),
    Harm.LANDS_LATE: Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER),
    Harm.DIES_BEFORE: Fault(FaultMode.CRASH_BEFORE),
    Harm.DIES_AFTER: Fault(FaultMode.CRASH_AFTER),
    Harm.SLEEPS: Fault(FaultMode.DELAY),
}
"""What a store does to a call, by harm: for every sink that writes to an object store."""


def store_fault(strike: Strike) -> Fault:
    """Return the fault of a store that a strike means."""
    fault = STORE_FAULTS[strike.harm]
    return Fault(
        fault.mode, strike.at, lands=fault.lands, hook=lambda _: void(strike.meanwhile())
    )


def void(_: object) -> None:
    """Drop an answer."""


class FilesUnderTest:
    """The files sink, on a store that harms its calls; a reader goes by the lists."""

    cannot: Mapping[Line, str] = {}
    harms: Sequence[Harm] = tuple(Harm)
    cases = by_profile(default=3, ci=7, nightly=1_000_000)
    merges = False

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._inner = MemoryStore()
        self._begun: list[FaultyStore] = []
        self.arm()

    def connect(self, registry: Registry) -> OperatorSpec:
        kind = f"files-{new_token()}"
        build = lambda config: FilesSink(config, lambda _url: self._begun[-1])  # noqa: E731 (a function of one line, built in place)
        registry.add(kind, FilesSinkConfig, build)
        return OperatorSpec(kind, files("memory:x", **self._options).sink_spec().config)

    def arm(self, strike: Strike | None = None) -> None:
        faults = () if strike is None else (store_fault(strike),)
        self._begun.append(FaultyStore(self._inner, *faults))

    @property
    def calls(self) -> int:
        return len(self._begun[-1].calls)

    def settle(self) -> None:
        for store in self._begun:
            store.deliver_late()

    def rows(self) -> list[Row]:
        return list(read_committed(self._inner).to_pylist())


class ListUnderTest:
    """The list sink: the list is in this process, so no call can fail by itself."""

    cannot: Mapping[Line, str] = {
        Line.RESTORE: "a list keeps the rows of epochs that a restore abandons"
    }
    harms: Sequence[Harm] = ()
    cases = by_profile(default=3, ci=7, nightly=1_000_000)
    merges = False
    calls = 0

    def __init__(self) -> None:
        self._sink = list_sink(f"list-{new_token()}")

    def connect(self, registry: Registry) -> OperatorSpec:
        del registry
        return self._sink

    def arm(self, strike: Strike | None = None) -> None:
        assert strike is None

    def settle(self) -> None:
        """Nothing is ever on its way."""

    def rows(self) -> list[Row]:
        return list(self._sink.rows())


class _Terminal:
    """Standard output whose writes are harmed; a dead process prints no more."""

    def __init__(self, printed: list[str], strike: Strike | None) -> None:
        self._printed = printed
        self._strike = strike
        self._is_dead = False
        self.calls = 0

    def write(self, text: str) -> None:
        if self._is_dead:
            raise CrashError("the process is dead")
        self.calls += 1
        strike = self._strike
        if strike is None or strike.at not in (None, self.calls):
            self._printed.append(text)
            return
        if strike.harm is Harm.SLEEPS:
            strike.meanwhile()
        self._is_dead = strike.harm in DEATHS
        if strike.harm not in (Harm.FAILS, Harm.DIES_BEFORE):
            self._printed.append(text)
        if self._is_dead:
            raise CrashError("killed while it printed")
        if strike.harm in (Harm.FAILS, Harm.FAILS_AFTER):
            raise StorageError("the terminal is gone")

    def flush(self) -> None:
        """All is written at once."""


class StdoutUnderTest:
    """The sink that prints, which cannot look up what it has printed."""

    cannot: Mapping[Line, str] = {
        Line.ONCE: "what was printed cannot be looked up",
        Line.RESTORE: "what was printed cannot be taken back",
    }
    harms: Sequence[Harm] = (Harm.FAILS, Harm.FAILS_AFTER, *DEATHS, Harm.SLEEPS)
    cases = by_profile(default=3, ci=7, nightly=1_000_000)
    merges = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._printed: list[str] = []
        self.arm()

    def connect(self, registry: Registry) -> OperatorSpec:
        del registry
        return stdout()

    def arm(self, strike: Strike | None = None) -> None:
        self._terminal = _Terminal(self._printed, strike)
        self._monkeypatch.setattr(sys, "stdout", self._terminal)

    @property
    def calls(self) -> int:
        return self._terminal.calls

    def settle(self) -> None:
        """What was printed is there."""

    def rows(self) -> list[Row]:
        return [json.loads(line) for line in "".join(self._printed).splitlines()]
