"""A service for async functions to call, whose answers tests control, and a clock to match."""

import asyncio
from typing import Any

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.operators.udfs.async_operator import AsyncUdfOperator
from penstock.operators.udfs.specs import async_udf

KEYED = StreamSchema(
    pa.schema(
        [("at", pa.timestamp("us")), ("user", pa.string()), ("n", pa.int64())]  # type: ignore[arg-type]
    ),
    time_column="at",
    key_columns=("user",),
)
UNKEYED = KEYED.keyed_by()


async def _declared(n: int) -> int:
    raise NotImplementedError


class Service:
    """Answers 10 * n; is silent about some numbers, and fails for others."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.failing: set[int] = set()
        self.scripts: dict[int, list[str]] = {}
        """What becomes of the next calls with a number: "silent" or "fail" or "answer"."""
        self.calls: list[Any] = []
        self.hanging = 0
        """How many calls get no answer just now."""
        self.operators: list[AsyncUdfOperator] = []

    async def __call__(self, n: int) -> Any:
        self.calls.append(n)
        if self.scripts.get(n):
            next_answer = self.scripts[n].pop(0)
            self.silent = self.silent - {n} | ({n} if next_answer == "silent" else set())
            self.failing = self.failing - {n} | ({n} if next_answer == "fail" else set())
        if n in self.silent:
            self.hanging += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.hanging -= 1
        if n in self.failing:
            raise ValueError(f"{n} is refused")
        return 10 * n

    def build(self, **options: Any) -> AsyncUdfOperator:
        """Build an operator that calls this service and whose deadlines pass at its silence."""
        spec = async_udf(
            _declared,
            returns=pa.int64(),
            inputs=["n"],
            name="look_up",
            output="tens",
            **options,
        )
        clock = SilenceClock(self)
        operator = AsyncUdfOperator(spec, self, clock, poll_seconds=0.001)
        clock.operator = operator
        return operator


class SilenceClock:
    """Moves on only when nothing can come any more but silence. No test waits for real time."""

    def __init__(self, service: Service) -> None:
        self.operator: AsyncUdfOperator | None = None
        self._service = service
        self._micros = 0

    def now_micros(self) -> int:
        assert self.operator is not None
        pool = self.operator._pool
        with pool._changed:
            open_calls = len(pool._waiting) + len(pool._running)
        # A call that has not begun yet may still be answered, whatever became of the last one.
        if open_calls <= self._service.hanging:
            self._micros += 1_000_000_000
        return self._micros


def rows(*numbers: int | None, user: str = "ann", at: int | None = None) -> pa.RecordBatch:
    """One row per number, at that many microseconds unless `at` says otherwise."""
    times = [(n or 0) if at is None else at for n in numbers]
    return pa.record_batch(
        [
            pa.array(times, pa.timestamp("us")),
            pa.array([user] * len(numbers)),
            pa.array(numbers, pa.int64()),
        ],
        schema=KEYED.arrow,
    )
