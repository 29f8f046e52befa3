"""How fast keys are hashed on one core: keys per second by type, best of several rounds."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.key_hash import hash_keys, owners_of

TARGETS = {"int64": 50_000_000, "string of 8 to 16 bytes": 10_000_000}


def _seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _strings(rng: np.random.Generator, row_count: int, shortest: int, longest: int) -> Any:
    lengths = rng.integers(shortest, longest + 1, row_count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = rng.integers(ord("a"), ord("z") + 1, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(
        row_count, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes())
    )


def run(*, quick: bool) -> list[dict[str, object]]:
    """Hash columns of several types; return a row with keys per second for each."""
    row_count = 500_000 if quick else 4_000_000
    rng = np.random.default_rng(1)
    whole = pa.array(rng.integers(-(1 << 62), 1 << 62, row_count))
    is_null = np.arange(row_count) % 3 == 0
    short = _strings(rng, row_count, 8, 16)
    words = pa.array([f"k{number}" for number in range(1_000)] * 100)
    keys: dict[str, list[Any]] = {
        "int64": [whole],
        "int64 with nulls": [pa.array(np.arange(row_count), mask=is_null)],
        "float64": [pa.array(rng.random(row_count))],
        "string of 8 to 16 bytes": [short],
        "string of 36 bytes": [_strings(rng, row_count // 4, 36, 36)],
        "string of 100 bytes": [_strings(rng, row_count // 8, 100, 100)],
        "string of 200 bytes": [_strings(rng, row_count // 16, 200, 200)],
        "string in a dictionary": [words.dictionary_encode()],
        "int64 and string": [whole, short],
    }
    rounds = 3 if quick else 7
    rows = [
        _row(name, len(columns[0]), _seconds(partial(hash_keys, columns), rounds))
        for name, columns in keys.items()
    ]
    owners = partial(owners_of, hash_keys([whole]), 37)
    return [*rows, _row("owners of hashes", row_count, _seconds(owners, rounds))]


def _row(name: str, row_count: int, seconds: float) -> dict[str, object]:
    rate = round(row_count / seconds)
    row: dict[str, object] = {"name": name, "row_count": row_count, "keys_per_second": rate}
    target = TARGETS.get(name)
    if target is not None:
        row |= {
            "target": f"at least {target:,} keys per second on one core",
            "ratio": round(rate / target, 2),
            "ok": rate >= target,
        }
    return row


if __name__ == "__main__":
    print(json.dumps(run(quick=False)))
