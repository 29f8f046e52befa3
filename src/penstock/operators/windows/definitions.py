"""Windows as users write them: tumbling, sliding and session, with their lengths and clock.

A window is a value without a name. The step that uses it has a name, which is part of its
errors.
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.clock import DurationLike, to_micros
from penstock.errors import ErrorCode, UserError
from penstock.operators.windows.assignment import find_grid_problems, find_length_problems
from penstock.state.tables.specs import TimeDomain, to_time_domain


@dataclass(frozen=True, slots=True)
class PaneWindow:
    """Tumbling or sliding windows, with the lengths as the user wrote them."""

    width: DurationLike
    slide: DurationLike | None = None
    """The distance between two starts; None for the width: tumbling windows."""
    offset: DurationLike = 0
    time_domain: TimeDomain | str = TimeDomain.EVENT_TIME
    """The clock that decides in which windows a row is, and when they close."""

    def __str__(self) -> str:
        kind = "tumbling" if self.slide is None else "sliding"
        asked: list[object] = [self.width]
        if self.slide is not None:
            asked.append(self.slide)
        if self.offset:
            asked.append(self.offset)
        return f"{kind}({', '.join(map(str, [*asked, *_shown_domain(self)]))})"


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Session windows, with the gap as the user wrote it."""

    gap: DurationLike
    time_domain: TimeDomain | str = TimeDomain.EVENT_TIME
    """Always event time: any other is refused with the name of the step."""

    def __str__(self) -> str:
        return f"session({', '.join([str(self.gap), *_shown_domain(self)])})"


Window: TypeAlias = PaneWindow | SessionWindow


def _shown_domain(window: Window) -> list[str]:
    """Return the clock of a window as `str` shows it: nothing for event time."""
    domain: object = window.time_domain
    shown = str(domain.value) if isinstance(domain, TimeDomain) else str(domain)
    return [] if shown == TimeDomain.EVENT_TIME.value else [shown]


def tumbling(
    width: DurationLike,
    *,
    offset: DurationLike = 0,
    time_domain: TimeDomain | str = TimeDomain.EVENT_TIME,
) -> PaneWindow:
    """Cut time into windows that follow each other without a gap.

    They are aligned to 1970-01-01 UTC, shifted by `offset`. With `time_domain`
    "processing-time" a row is in the window in which it is read by the driver's clock, and a
    window closes when that clock has passed its end, also if no row comes. Then rows need no
    event time, and none is late.

    >>> str(tumbling("10s"))
    'tumbling(10s)'
    >>> str(tumbling("10s", time_domain="processing-time"))
    'tumbling(10s, processing-time)'
    """
    return PaneWindow(width, offset=offset, time_domain=time_domain)


def sliding(
    width: DurationLike,
    slide: DurationLike,
    *,
    offset: DurationLike = 0,
    time_domain: TimeDomain | str = TimeDomain.EVENT_TIME,
) -> PaneWindow:
    """Begin a window of `width` every `slide`; a row is in all that hold its event time.

    They are aligned to 1970-01-01 UTC, shifted by `offset`. With a slide above the width
    some rows are in no window; they are counted as `rows_outside_windows`. For
    `time_domain` see `tumbling`.

    >>> str(sliding("1h", "5m"))
    'sliding(1h, 5m)'
    """
    return PaneWindow(width, slide, offset, time_domain)


def session(
    gap: DurationLike, *, time_domain: TimeDomain | str = TimeDomain.EVENT_TIME
) -> SessionWindow:
    """Group the rows of a key as long as each follows the one before by at most `gap`.

    A session starts at its first row and ends a gap after its last one. Sessions are of event
    time; a step with another `time_domain` is refused.

    >>> str(session("30m"))
    'session(30m)'
    """
    return SessionWindow(gap, time_domain)


def lateness_to_micros(name: str, lateness: DurationLike | None) -> int | None:
    """Return how late rows may be, in microseconds; None for results that do not change."""
    if lateness is None:
        return None
    micros = to_micros(lateness, f"allowed_lateness of window {name!r}")
    if problems := find_length_problems({"lateness": micros}):
        raise UserError(
            f"window {name!r} cannot have allowed_lateness={lateness!r}: {problems[0]}. Leave it "
            "out if late rows shall change nothing",
            code=ErrorCode.INVALID_NUMBER,
            operator=name,
        )
    return micros


def window_to_micros(name: str, window: Window) -> dict[str, int]:
    """Return the lengths of a window in microseconds by name, or raise with all wrong ones."""
    asked: dict[str, DurationLike] = {}
    if isinstance(window, SessionWindow):
        asked = {"gap": window.gap}
    elif isinstance(window, PaneWindow):
        asked = {"width": window.width, "offset": window.offset}
        if window.slide is not None:
            asked["slide"] = window.slide
    else:
        raise UserError(
            f"window {name!r} cannot be {window!r}: use pen.tumbling, pen.sliding or pen.session",
            code=ErrorCode.INVALID_CONFIG,
            operator=name,
        )
    lengths: dict[str, int] = {}
    problems: list[str] = []
    for what, duration in asked.items():
        try:
            lengths[what] = to_micros(duration, what, is_signed=what == "offset")
        except UserError as error:
            problems.append(error.message)
    if not problems and isinstance(window, SessionWindow):
        problems = find_length_problems(lengths)
    elif not problems:
        lengths.setdefault("slide", lengths["width"])
        problems = find_grid_problems(**lengths)
    if problems:
        listed = "\n  ".join(dict.fromkeys(problems))
        raise UserError(
            f"window {name!r} cannot be {window}:\n  {listed}",
            code=ErrorCode.INVALID_NUMBER,
            operator=name,
            problems=tuple(problems),
        )
    return lengths


def join_window_to_micros(name: str, window: object) -> dict[str, int]:
    """Return the lengths of the windows of a join; those by processing time are refused."""
    problem = None
    if not isinstance(window, PaneWindow | SessionWindow):
        problem = (
            f"{window!r}: use pen.tumbling, pen.sliding, pen.session or pen.same_window"
        )
    elif window_to_domain(name, window) is TimeDomain.PROCESSING_TIME:
        problem = (
            f"{window}: windows of joins are of event time. Aggregate both sides by processing "
            "time first, and join the results with window=pen.same_window()"
        )
    else:
        return window_to_micros(name, window)
    raise UserError(
        f"join {name!r} cannot be in {problem}",
        code=ErrorCode.INVALID_CONFIG,
        operator=name,
    )


def window_to_domain(name: str, window: object) -> TimeDomain:
    """Return the clock of a window; sessions by processing time are refused."""
    if not isinstance(window, PaneWindow | SessionWindow):
        return TimeDomain.EVENT_TIME  # what is no window at all is refused for that
    domain = to_time_domain(window.time_domain, "time_domain", where=f"window {name!r}")
    if isinstance(window, SessionWindow) and domain is TimeDomain.PROCESSING_TIME:
        raise UserError(
            f"window {name!r} cannot be {window}: sessions are of event time only. Use "
            "pen.tumbling or pen.sliding by processing time, or give the rows an event time when "
            "reading them and leave time_domain out",
            code=ErrorCode.INVALID_CONFIG,
            operator=name,
        )
    return domain
