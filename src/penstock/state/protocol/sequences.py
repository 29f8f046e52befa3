"""Create-once sequences: finding the newest number without trusting a listing.

Claims, epoch records and retention records are numbered from a known first number without
gaps, each created only by someone who saw the one before. Old numbers may be thinned out,
but never a *waypoint* (every `stride`-th number), and never one in the newest waypoint's
block:

    first                                 newest
      W . . . W . . . W . . . W x x x W x x x
      ^ kept for ever ^                ^ last block: complete

So waypoints exist exactly up to the newest one, and after it numbers exist exactly up to
the newest: two searches over a predicate that turns from true to false once. Each takes
a handful of HEAD requests whatever the length. Pure.
"""

from collections.abc import Callable

from penstock.state.protocol.steps import Steps, exists


def find_newest(
    path_of: Callable[[int], str], *, first: int, stride: int, seen: int | None = None
) -> Steps[int | None]:
    """Return the newest number that exists, or None for an empty sequence.

    `seen` is a number known to have existed once; the search starts there. Others may
    append meanwhile: the answer was the newest number at some moment of the search.
    """
    if seen is None and not (yield from exists(path_of(first))):
        return None
    block = 0 if seen is None else (seen - first) // stride
    while True:
        block = yield from _last_existing(path_of, first, stride, known=block)
        start = first + block * stride
        known = max(0, (seen or first) - start)
        offset = yield from _last_existing(path_of, start, 1, known=known, bound=stride)
        # Only while this block is still the last one is it known to have no holes.
        if stride == 1 or not (yield from exists(path_of(start + stride))):
            return start + offset
        block += 1


def _last_existing(
    path_of: Callable[[int], str],
    origin: int,
    spacing: int,
    *,
    known: int,
    bound: int | None = None,
) -> Steps[int]:
    """Return the last `n` such that number `origin + n * spacing` exists.

    Number `known` exists; existence ends once, before `bound`. Doubles the stride until
    it finds an absent number, then halves the gap.
    """
    low, step, high = known, 1, bound
    while high is None or low + step < high:
        if not (yield from exists(path_of(origin + (low + step) * spacing))):
            high = low + step
            break
        low += step
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from exists(path_of(origin + middle * spacing))):
            low = middle
        else:
            high = middle
    return low


def waypoint_after(number: int, *, first: int, stride: int) -> int:
    """Return the first waypoint above a number; until it exists, the number is never thinned."""
    return number - (number - first) % stride + stride


def may_thin(number: int, *, first: int, newest: int, stride: int) -> bool:
    """Tell whether a number may be removed without breaking `find_newest`."""
    block_start = newest - (newest - first) % stride
    return number < block_start and (number - first) % stride != 0
