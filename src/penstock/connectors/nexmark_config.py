"""The settings of a Nexmark source, and everything that can be wrong with them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from penstock.connectors.nexmark_schemas import SCHEMAS
from penstock.connectors.nexmark_sequence import EventKind, EventSequence
from penstock.core.signals import MAX_MICROS
from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, UserError

LARGEST_POPULATION = 1 << 31
"""Draws are made of 32 bits."""


@dataclass(frozen=True, slots=True)
class NexmarkConfig:
    """The config of kind "nexmark"; see `nexmark` for what the settings mean."""

    events: int | None = None
    rate: float | None = None
    seed: int = 0
    kind: str = "all"
    splits: int = 1
    start_micros: int = 0
    gap_nanos: int = 100_000
    disorder_micros: int = 0
    proportions: tuple[int, ...] = (1, 3, 46)
    auctions: int | None = None
    bidders: int | None = None
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    in_flight_auctions: int = 100
    active_people: int = 1_000
    columns: tuple[str, ...] | None = None

    @property
    def sequence(self) -> EventSequence:
        """The events in their order; the config is known to be sound."""
        persons, auctions, bids = self.proportions
        return EventSequence(persons, auctions, bids, EventKind(self.kind))

    def micros_of(self, event_count: int) -> int:
        """Return how much event time so many events take."""
        return event_count * self.gap_nanos // 1_000


def check_config(config: NexmarkConfig, *further: str) -> None:
    """Refuse settings that cannot work, and name all of them at once."""
    problems = [
        *further,
        *_number_problems(config),
        *_kind_problems(config),
        *_time_problems(config),
    ]
    if problems:
        raise UserError(
            f"a Nexmark source cannot be made so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
        )


def _number_problems(config: NexmarkConfig) -> Iterator[str]:
    if config.rate is not None and not (config.rate > 0 and isfinite(config.rate)):
        yield f"rate is {config.rate}: it must be more than 0 events a second"
    for name, least, most in (
        ("events", 0, MAX_MICROS),
        ("seed", 0, MAX_MICROS),
        ("splits", 1, LARGEST_POPULATION),
        ("auctions", 1, LARGEST_POPULATION),
        ("bidders", 1, LARGEST_POPULATION),
        ("hot_auction_ratio", 1, LARGEST_POPULATION),
        ("hot_bidder_ratio", 1, LARGEST_POPULATION),
        ("hot_seller_ratio", 1, LARGEST_POPULATION),
        ("in_flight_auctions", 0, LARGEST_POPULATION // 2),
        ("active_people", 1, LARGEST_POPULATION // 2),
    ):
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            yield f"{name} is {value}: it must be between {least} and {most}"


def _kind_problems(config: NexmarkConfig) -> Iterator[str]:
    kinds = [str(kind) for kind in EventKind]
    if config.kind not in kinds:
        yield (
            f"kind is {config.kind!r}{did_you_mean(config.kind, kinds)}: it must be one of "
            f"{', '.join(kinds)}"
        )
        return
    yield from _proportion_problems(config)
    known = SCHEMAS[EventKind(config.kind)].schema.names
    for name in config.columns or ():
        if name not in known:
            yield (
                f"{name!r} in columns is not a column of {config.kind}"
                f"{did_you_mean(name, known)}"
            )
    if config.columns == ():
        yield "columns is empty: name at least one"


def _proportion_problems(config: NexmarkConfig) -> Iterator[str]:
    shown = " : ".join(str(part) for part in config.proportions)
    if len(config.proportions) != 3:
        yield f"proportions are {shown}: there must be three, of persons, auctions and bids"
        return
    if min(config.proportions) < 0 or not 0 < sum(config.proportions) <= 1_000_000:
        yield (
            f"proportions are {shown}: none may be negative, and together they must be "
            "between 1 and 1000000"
        )
        return
    persons, auctions, bids = config.proportions
    if not config.sequence.emitted:
        yield f"kind is {config.kind!r}, but proportions {shown} have none of them"
    if bids and not auctions and config.auctions is None:
        yield f"proportions {shown} have bids without auctions: say how many by auctions"
    if (bids or auctions) and not persons and config.bidders is None:
        yield f"proportions {shown} have no persons: say how many there are by bidders"


def _time_problems(config: NexmarkConfig) -> Iterator[str]:
    earliest = config.start_micros - config.disorder_micros
    if earliest < -MAX_MICROS:
        yield "start is too early: event times begin 292,000 years before 1970"
    if config.gap_nanos < 0 or not 0 <= config.disorder_micros < 1 << 32:
        yield "gap must not be negative, and disorder must be between 0 and 71 minutes"
    elif config.start_micros + config.micros_of(config.events or 0) > MAX_MICROS:
        yield "gap is too long for so many events: event times end 292,000 years after 1970"
