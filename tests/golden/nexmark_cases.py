"""Nexmark rows that are frozen in `nexmark_rows.json`: a seed gives the same rows for ever.

To add a case, append it and run this file: it appends the rows and refuses to change those
that are there.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.nexmark.draws import EventKind
from penstock.connectors.nexmark.rows import SCHEMAS, NexmarkConfig, make_batch

FROZEN = Path(__file__).with_name("nexmark_rows.json")
LATER = 1_234_567_850

CASES: dict[str, tuple[NexmarkConfig, range]] = {
    "persons": (NexmarkConfig(kind="persons", seed=7), range(0, 100, 50)),
    "persons later": (NexmarkConfig(kind="persons"), range(LATER, LATER + 100, 50)),
    "auctions": (NexmarkConfig(kind="auctions", seed=7), range(1, 4)),
    "auctions later": (NexmarkConfig(kind="auctions"), range(LATER + 1, LATER + 4)),
    "bids": (NexmarkConfig(kind="bids", seed=7), range(4, 10)),
    "bids later": (NexmarkConfig(kind="bids"), range(LATER + 4, LATER + 10)),
    "bids out of order": (
        NexmarkConfig(kind="bids", disorder_micros=200_000, gap_nanos=333),
        range(LATER + 4, LATER + 10),
    ),
    "bids of populations": (
        NexmarkConfig(
            kind="bids", proportions=(0, 0, 1), auctions=100_000, bidders=1_000_000
        ),
        range(LATER, LATER + 6),
    ),
    "all": (NexmarkConfig(seed=7), range(6)),
}


def rows_of(case: str) -> list[dict[str, Any]]:
    """Return the rows of a case as JSON has them."""
    config, events = CASES[case]
    schema = SCHEMAS[EventKind(config.kind)].arrow
    numbers = pa.array(events, pa.int64()).to_numpy()
    rows = make_batch(config, numbers, schema).to_pylist()
    return json.loads(json.dumps(rows, default=str))  # type: ignore[no-any-return]


def read_frozen() -> dict[str, list[dict[str, Any]]]:
    """Return the frozen rows by case."""
    return json.loads(FROZEN.read_text("utf-8"))  # type: ignore[no-any-return]


def freeze() -> None:
    """Append the rows of new cases to the file."""
    frozen = read_frozen() if FROZEN.exists() else {}
    for case in CASES:
        frozen.setdefault(case, rows_of(case))
        if frozen[case] != rows_of(case):
            raise ValueError(
                f"the rows of {case!r} are not the frozen ones: never change them"
            )
    FROZEN.write_text(json.dumps(frozen, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    freeze()
