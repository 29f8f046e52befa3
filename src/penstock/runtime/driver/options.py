"""RunOptions: the arguments of a run. Every way to run a job passes on this one value.

`JobOptions` are those that users write in the same way wherever they start a job; what they mean
is documented once, in docs/running.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from penstock.core.clock import Clock, SystemClock, new_token
from penstock.core.ids import Epoch, JobId, SavepointName
from penstock.core.settings import current
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import (
    DriverSettings,
    JobEnvironment,
)
from penstock.runtime.driver.listening import JobListener, Listeners, StatusFunction
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.policies import (
    RestartPolicy,
    RestartsLike,
    Retention,
    RetentionLike,
    Trigger,
    TriggerLike,
    to_restarts,
    to_retention,
    to_trigger,
)
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.create import probe_store
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import StorePlace, to_options, to_store

_LOCAL_EPOCH_MICROS = 1_000_000
_REMOTE_EPOCH_MICROS = 10_000_000
_SAMPLES_MICROS = 10_000_000
"""How often an epoch looks at the keys that it moves, for the journal."""
_REMOTE_SCHEMES = ("s3:", "gs:", "az:")


class JobOptions(TypedDict, total=False):
    """The options of every job, however it is started. All of them can be left out."""

    restore: int | str | None
    """The epoch number or savepoint name to go back to before the run."""
    allow_dropped_state: bool
    """Go on although state that the pipeline has no use for is left behind."""
    renamed: Mapping[str, str] | None
    """The steps that have another name than before: `{"old": "new"}`. Their state goes on."""
    on_status: Callable[[JobStatus], None] | None
    """Called with the job's status whenever something changes."""
    listeners: Sequence[JobListener]
    """Objects of `pen.JobListener`, which hear of epochs, failures and the end as well."""
    retention: RetentionLike | None
    """Which epochs stay restorable: a number, an age such as "7d", or `pen.retention(…)`."""
    restarts: RestartsLike | None
    """How often in a row a failed job is tried again: a number, or `pen.restarts(…)`."""
    store_options: Mapping[str, Any] | None
    """Options of the checkpoints' store, such as its endpoint and credentials."""


class PacedOptions(JobOptions, total=False):
    """The options of a job that decides by itself when to read."""

    trigger: TriggerLike | None
    """When epochs begin: how long after the last one, such as "1m", or `pen.trigger(…)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The arguments of one run of a job. The public functions have parameters of these names."""

    checkpoint: StorePlace
    """A URL, a path, or an open store."""
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    restore: int | str | None = None
    allow_dropped_state: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    on_status: Callable[[JobStatus], None] | None = None
    listeners: Sequence[JobListener] = ()
    retention: Retention | None = None
    restarts: RestartPolicy | None = None
    trigger: Trigger | None = None
    on_driver: Callable[[JobDriver], None] | None = None
    """Called with the driver before it starts."""
    on_epoch: Callable[[EpochRan], None] | None = None
    """Called with every epoch that counts, when its sinks have committed."""
    keeps_journal: bool = True
    """Whether it leaves events to read, and honours requests: not a preview."""
    settings: DriverSettings | None = None
    """Replaces the settings that follow from the options, the process's settings and the store."""
    clock: Clock = field(default_factory=SystemClock)
    master: str | None = None
    """On Spark: the master URL of the cluster."""
    session: Any = None
    """On Spark: the user's own session."""
    show_logs: bool = False
    """On Spark: whether an embedded Spark shows its log."""

    @classmethod
    def of(cls, method: str, given: JobOptions, **more: Any) -> "RunOptions":
        """Return the arguments of a run; `given` are those that a user wrote for a method.

        A method whose epochs are batches of a streaming query has no trigger of its own.
        """
        known = JobOptions if method in _FED_METHODS else PacedOptions
        names = list(known.__annotations__)
        for name in given:
            if name not in names:
                raise _unknown_option(method, name, [*names, *more])
        values: dict[str, Any] = {n: v for n, v in given.items() if v is not None}
        for name, convert in _CONVERSIONS.items():
            if name in values:
                values[name] = convert(values[name])
        return cls(**values, **more)

    def tell(self, status: JobStatus) -> JobStatus:
        """Give `on_status` a status that no driver gives it; return the status."""
        Listeners(status.job, self.all_listeners).tell("on_status", status)
        return status

    @property
    def all_listeners(self) -> list[JobListener]:
        """Those that a user named, `on_status` last: what it shows is the newest."""
        shown = [] if self.on_status is None else [StatusFunction(self.on_status)]
        return [*self.listeners, *shown]

    def store(self) -> ObjectStore:
        """Open the store, only to read what is there."""
        return to_store(self.checkpoint, **self.store_options)

    def open_store(self, job: JobId) -> ObjectStore:
        """Open the store, and check that a job can keep its checkpoints there."""
        store = self.store()
        probe_store(store, job, new_token())
        return store

    def driver_settings(self) -> DriverSettings:
        """Return the driver's settings; a remote store gets longer epochs."""
        if self.settings is not None:
            return self.settings
        found, chosen = self.checkpoint, current()
        is_remote = isinstance(found, str) and found.startswith(_REMOTE_SCHEMES)
        target = _REMOTE_EPOCH_MICROS if is_remote else _LOCAL_EPOCH_MICROS
        if self.trigger is not None:
            # Longer epochs than on remote stores would only delay stops and fill memory. Shorter
            # ones than on local stores might not catch up: each takes some time for itself.
            longest = min(self.trigger.every_micros, _REMOTE_EPOCH_MICROS)
            target = max(longest, _LOCAL_EPOCH_MICROS)
        keep = self.retention or Retention()
        return DriverSettings(
            target_epoch_micros=target,
            budget=SourceBudget(wall_micros=target),
            trigger=self.trigger,
            keep_epochs=keep.epochs or chosen.keep_epochs,
            keep_micros=keep.age_micros,
            epoch_deadline_micros=chosen.epoch_deadline_seconds * 1_000_000,
            compaction=chosen.compaction,
            restarts=self.restarts or RestartPolicy(),
            allow_dropped_state=self.allow_dropped_state,
            renamed=self.renamed,
            samples_every_micros=_SAMPLES_MICROS if self._samples else None,
        )

    @property
    def _samples(self) -> bool:
        return self.keeps_journal and current().journal_samples == "on"

    def driver(self, environment: JobEnvironment) -> JobDriver:
        """Return the driver of a run, after passing it to `on_driver`; `run` it with `epochs`."""
        driver = JobDriver(
            environment, listeners=self.all_listeners, on_epoch=self.on_epoch
        )
        if self.on_driver is not None:
            self.on_driver(driver)
        return driver

    @property
    def epochs(self) -> Epochs | None:
        """The epochs that `restore` names; None to go on from the last epoch."""
        if self.restore is None:
            return None
        if isinstance(self.restore, str):
            return Epochs(savepoint=SavepointName(self.restore))
        return Epochs(number=Epoch(self.restore))


def _to_names(value: Any) -> dict[str, str]:
    """Return the names that an option means; each new name may stand for one step only."""
    is_valid = isinstance(value, Mapping) and all(
        isinstance(name, str) for pair in value.items() for name in pair
    )
    if is_valid and len(set(value.values())) == len(value):
        return dict(value)
    raise UserError(
        f"{value!r} does not say how steps were renamed: write {{'old': 'new'}}, each name once",
        code=ErrorCode.INVALID_CONFIG,
    )


_FED_METHODS = ("attach", "start_attached")
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "renamed": _to_names,
    "retention": to_retention,
    "restarts": to_restarts,
    "trigger": to_trigger,
    "store_options": to_options,
}


def _unknown_option(method: str, name: str, names: Sequence[str]) -> UserError:
    hint = did_you_mean(name, names)
    if name == "trigger":
        hint = ": its epochs are the batches of a streaming query, whose own trigger sets the pace"
    return UserError(
        f"{method} has no option {name!r}{hint}", code=ErrorCode.INVALID_CONFIG, option=name
    )
