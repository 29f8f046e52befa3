"""The order of rows by the hash of their key. Pure."""

import numpy as np

from penstock.core.hash_kernels import Hashes
from penstock.state.tables.key_equality import Positions


def stable_order(hashes: Hashes) -> Positions:
    """Return the order that sorts `hashes`, equal ones as they came.

    Hash and place are packed into one word and sorted by value, which is several times
    faster than sorting places by hash. The low bits that gave way to the place rarely
    matter; where they do, a stable sort repairs the few rows that are out of order.
    """
    places = np.uint64((1 << max(1, len(hashes) - 1).bit_length()) - 1)
    packed = hashes & ~places
    packed |= np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    packed &= places
    order = packed.view(np.int64)
    ordered = hashes[order]
    if bool((ordered[1:] < ordered[:-1]).any()):
        order = order[np.argsort(ordered, kind="stable")]
    return order


def is_in_order(hashes: Hashes) -> bool:
    """Tell whether hashes ascend already, which is cheap to see and saves sorting and copying."""
    return bool((hashes[1:] >= hashes[:-1]).all())
