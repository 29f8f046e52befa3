"""A program that joins tables whose state is four times the memory budget, and tells its memory.

It prints the largest number of bytes that Arrow held at any time, how many bytes of rows the
join keeps, and how many changes came out. Rows are held by Arrow alone.
"""

import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from penstock.state.storage.urls import open_store
from penstock.testing import OperatorHarness

BUDGET = 16 << 20
TEXT_BYTES = 1_000
ROWS_PER_EPOCH = 2_000
EPOCHS = 4 * BUDGET // (TEXT_BYTES * ROWS_PER_EPOCH) + 1
KEYS = 1_000_000
"""Most keys have one row, so that results stay few."""


def main(folder: str) -> None:
    """Join rows epoch by epoch."""
    pipeline = pen.Pipeline("large")
    sides = []
    for name in ("one", "two"):
        columns: dict[str, Any] = {"k": pa.int64(), name: pa.binary()}
        sides.append(pipeline.read(name, pen.list_source([], pa.schema(columns))))
    joined = sides[0].join("join", sides[1], on="k", how="full", ttl=(None, None))
    joined.write("out", pen.blackhole())
    node = next(node for node in pipeline.graph().nodes if node.operator == "join")
    random = np.random.default_rng(1)
    changes = 0
    with OperatorHarness(node.spec, *node.inputs, store=open_store(folder)) as harness:
        harness._worker.memory_budget_bytes = BUDGET
        for _ in range(EPOCHS):
            for index, name in enumerate(("one", "two")):
                texts = [random.bytes(TEXT_BYTES) for _ in range(ROWS_PER_EPOCH // 2)]
                keys = random.integers(0, KEYS, len(texts))
                harness.push(pa.table({"k": keys, name: texts}), input=index)
            harness.barrier()
            changes += len(harness.take())
    figures = {
        "peak_bytes": pa.default_memory_pool().max_memory(),
        "kept_bytes": EPOCHS * ROWS_PER_EPOCH * TEXT_BYTES,
        "budget_bytes": BUDGET,
        "kept_rows": EPOCHS * ROWS_PER_EPOCH,
        "changes": changes,
    }
    sys.stdout.write(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
