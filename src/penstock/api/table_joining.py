"""Joins of all rows so far: for how long each side is kept, and a warning if it is for ever.

    users.join("orders-of", orders, on="user", how="left", ttl=("1d", None))

Neither a window nor bounds say here when a row is needed no longer, so the user does:

| `ttl=` | left rows are kept | right rows are kept |
|---|---|---|
| `"1d"` | for a day | for a day |
| `("1d", None)` | for a day | for ever |
| `(None, None)` | for ever | for ever |
| left out | for ever, and a warning says so | as the left ones |

By event time a row lives for so long after its own instant, if its side has event times; else it
lives by processing time, from the epoch that brought it. Rows of a changelog go when it removes them, so a table is nothing to warn of.
"""

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias

from penstock.api.windowing import FOREVER
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.joins.sides import SIDES, How, check_problems
from penstock.operators.joins.table_output import (
    TableJoinConfig,
    derive_output,
    find_identity_problems,
)

Ttl: TypeAlias = DurationLike | tuple[DurationLike | None, DurationLike | None]
"""How long rows are kept: of both sides, or of the left and of the right; None is for ever."""

_log = logging.getLogger(__name__)


def table_join_spec(
    name: str,
    sides: tuple[StreamSchema, StreamSchema],
    ttl: Ttl | None,
    common: Mapping[str, Any],
) -> OperatorSpec:
    """Return the operator that joins all rows of two streams, which have the join's keys.

    `common` is what the configs of all joins hold. Refused are columns that tell rows apart
    but cannot be looked for, columns whose names are taken, and a predicate that is none.
    """
    ttls = _to_ttls(name, ttl)
    problems = [
        problem
        for side, stream in zip(SIDES, sides, strict=True)
        for problem in find_identity_problems(stream, side)
    ]
    check_problems(name, problems)
    config = TableJoinConfig(**common, left_ttl_micros=ttls[0], right_ttl_micros=ttls[1])
    rules = config.rules()
    check_problems(
        name, [*rules.find_problems(), *_bags_that_outlive(rules.how, sides, ttls)]
    )
    derive_output(rules, *sides)
    if ttl is None:
        _warn_of_growth(name, sides)
    return config.to_operator_spec()


def _to_ttls(name: str, ttl: Ttl | None) -> tuple[int | None, int | None]:
    """Return how long rows of both sides are kept, in microseconds.

    >>> _to_ttls("orders", ("1s", None))
    (1000000, None)
    >>> _to_ttls("orders", "forever")
    (None, None)
    """
    both: Any = ttl if isinstance(ttl, tuple | list) else (ttl, ttl)
    problem = f"ttl={ttl!r} is not possible: give a duration such as '1d', or one per side"
    if len(both) == 2:
        try:
            left, right = map(_to_ttl, both)
        except UserError as error:
            problem = error.message
        else:
            if all(one is None or 0 < one <= MAX_MICROS for one in (left, right)):
                return left, right
    raise UserError(
        f"join {name!r} cannot be computed: {problem}",
        code=ErrorCode.INVALID_NUMBER,
        operator=name,
    )


def _to_ttl(one: Any) -> int | None:
    is_forever = one is None or (isinstance(one, str) and one == FOREVER)
    return None if is_forever else to_micros(one, "ttl")


def _bags_that_outlive(
    how: How, sides: tuple[StreamSchema, StreamSchema], ttls: tuple[int | None, int | None]
) -> list[str]:
    """Return what is wrong with equal rows that count as one, but may have had other partners.

    Whether a row was emitted without a partner is noted once for all that are equal to it.
    """
    notes = how not in (How.INNER, How.RIGHT), how in (How.RIGHT, How.FULL)
    return [
        f"rows of the {SIDES[index]} side may be equal, because its changelog has no table key, "
        f"and which of them had partners is not known when the other side forgets these by its "
        f"ttl: leave out the ttl of the {SIDES[1 - index]} side, or give the rows a key with "
        "to_rows() and to_table(…)"
        for index in (0, 1)
        if notes[index] and sides[index].is_bag and ttls[1 - index] is not None
    ]


def _warn_of_growth(name: str, sides: tuple[StreamSchema, StreamSchema]) -> None:
    """Name the sides whose rows pile up, because nothing ever removes them."""
    streams = zip(SIDES, sides, strict=True)
    growing = [side for side, stream in streams if not stream.is_changelog]
    if growing:
        _log.warning(
            "join %r keeps all rows of the %s side for ever, so its state grows with them. Give it "
            "ttl='1d' or the like, within= or window=, or say that it is meant: ttl='forever'",
            name,
            " and the ".join(growing),
        )
