"""Windows in a graph: the kinds "pane_combiner", "window" and "session_window"."""

from dataclasses import dataclass

from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec, Plain
from penstock.operators.aggregates.compiling import (
    AggregateConfig,
    plan_from_config,
    plan_to_config,
)
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.windows.aggregation import WindowAggregation
from penstock.operators.windows.assignment import (
    WindowGrid,
    find_grid_problems,
    find_length_problems,
)
from penstock.operators.windows.panes import PaneCombiner, PaneWindows
from penstock.operators.windows.sessions import SessionWindows


@dataclass(frozen=True, slots=True)
class PaneWindowConfig:
    """The config of kind "window"."""

    width_micros: int
    slide_micros: int
    offset_micros: int
    stream: bytes
    """The schema of the rows, with their key."""
    aggregates: tuple[AggregateConfig, ...]
    shown: str

    def grid(self) -> WindowGrid:
        """Return the windows, if there can be such."""
        problems = find_grid_problems(
            self.width_micros, self.slide_micros, self.offset_micros
        )
        if problems:
            raise UserError(
                f"{self.shown} cannot be computed: {'; '.join(problems)}",
                code=ErrorCode.INVALID_NUMBER,
            )
        return WindowGrid(self.width_micros, self.slide_micros, self.offset_micros)

    def aggregation(self) -> WindowAggregation:
        """Return what is computed."""
        stream = StreamSchema.from_bytes(self.stream)
        return WindowAggregation(stream, plan_from_config(self.aggregates))


@dataclass(frozen=True, slots=True)
class PaneCombinerConfig(PaneWindowConfig):
    """The config of kind "pane_combiner": that of the window it works for, and more."""

    consumer: str
    """The operator that merges the partials."""
    diverts_bad_times: bool


def pane_window_specs(
    grid: WindowGrid,
    aggregation: WindowAggregation,
    *,
    consumer: str,
    shown: str,
    diverts_bad_times: bool,
) -> tuple[OperatorSpec, OperatorSpec]:
    """Return the combiner and the window operator of one step, to be joined by key."""
    config: dict[str, Plain] = {
        "width_micros": grid.width_micros,
        "slide_micros": grid.slide_micros,
        "offset_micros": grid.offset_micros,
        "stream": aggregation.stream.to_bytes(),
        "aggregates": plan_to_config(aggregation.plan),
        "shown": shown,
    }
    combiner = {**config, "consumer": consumer, "diverts_bad_times": diverts_bad_times}
    return OperatorSpec("pane_combiner", combiner), OperatorSpec("window", config)


class PaneCombinerConstructor(OperatorConstructor[PaneCombinerConfig]):
    """Builds combiners."""

    config_type = PaneCombinerConfig

    @override
    def with_config(
        self, config: PaneCombinerConfig, registry: Registry
    ) -> ConstructedOperator:
        return ConstructedOperator(
            PaneCombiner(
                config.grid(),
                config.aggregation(),
                consumer=config.consumer,
                diverts_bad_times=config.diverts_bad_times,
            )
        )


class PaneWindowConstructor(OperatorConstructor[PaneWindowConfig]):
    """Builds tumbling and sliding windows."""

    config_type = PaneWindowConfig

    @override
    def with_config(
        self, config: PaneWindowConfig, registry: Registry
    ) -> ConstructedOperator:
        return ConstructedOperator(
            PaneWindows(config.grid(), config.aggregation(), config.shown)
        )


@dataclass(frozen=True, slots=True)
class SessionWindowConfig:
    """The config of kind "session_window"."""

    gap_micros: int
    stream: bytes
    """The schema of the rows, with their key."""
    aggregates: tuple[AggregateConfig, ...]
    shown: str
    diverts_bad_times: bool


def session_window_spec(
    gap_micros: int,
    aggregation: WindowAggregation,
    *,
    shown: str,
    diverts_bad_times: bool,
) -> OperatorSpec:
    """Return the operator of a step; its rows come by `aggregation.keys`."""
    return OperatorSpec(
        "session_window",
        {
            "gap_micros": gap_micros,
            "stream": aggregation.stream.to_bytes(),
            "aggregates": plan_to_config(aggregation.plan),
            "shown": shown,
            "diverts_bad_times": diverts_bad_times,
        },
    )


class SessionWindowConstructor(OperatorConstructor[SessionWindowConfig]):
    """Builds session windows."""

    config_type = SessionWindowConfig

    @override
    def with_config(
        self, config: SessionWindowConfig, registry: Registry
    ) -> ConstructedOperator:
        problems = find_length_problems({"gap": config.gap_micros})
        if problems:
            raise UserError(
                f"{config.shown} cannot be computed: {'; '.join(problems)}",
                code=ErrorCode.INVALID_NUMBER,
            )
        stream = StreamSchema.from_bytes(config.stream)
        return ConstructedOperator(
            SessionWindows(
                config.gap_micros,
                WindowAggregation(stream, plan_from_config(config.aggregates)),
                config.shown,
                diverts_bad_times=config.diverts_bad_times,
            )
        )


def register_windows(registry: Registry) -> None:
    """Add the kinds of windows."""
    registry.add("pane_combiner", PaneCombinerConstructor())
    registry.add("window", PaneWindowConstructor())
    registry.add("session_window", SessionWindowConstructor())
