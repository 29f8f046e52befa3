"""Tests epochs that end before their plan does, where each attempt may end in another place."""

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

import penstock as pen
from penstock.catalog import default_registry
from penstock.connectors.kafka import fetched, reading
from penstock.connectors.kafka.source import KafkaSource, KafkaSourceConfig
from penstock.core.clock import ManualClock
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import Chaos, Fault, FaultMode, LocalJob
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic
from tests.builders.servers import a_topic

PARTITIONS = 3
PER_PARTITION = 80
RUN = 10
"""How many records follow each other that are all small, or all large."""


@dataclass
class UnevenClock(ManualClock):
    """Stands still, but while a source reads: then up to ten seconds pass at each look."""

    dice: random.Random | None = None

    @override
    def now_micros(self) -> int:
        if self.dice is not None:
            self.micros += self.dice.randint(0, 10_000_000)
        return self.micros


@dataclass
class Attempts:
    """What attempts at epochs were to read of the partitions, and how far each came."""

    reached: dict[tuple[tuple[str, int, int], ...], set[tuple[int, ...]]] = field(
        default_factory=lambda: defaultdict(set)
    )

    def note(self, ctx: SourceContext) -> None:
        plan = tuple((split.name, split.start[1], split.end[1]) for split in ctx.splits)
        ends = tuple(ctx.split_state(split.name).offset[1] for split in ctx.splits)
        self.reached[plan].add(ends)

    @property
    def cut(self) -> int:
        """How many plans were not read to their end."""
        return sum(
            any(end < wanted[2] for end, wanted in zip(ends, plan, strict=True))
            for plan, found in self.reached.items()
            for ends in found
        )

    @property
    def differing(self) -> int:
        """How many plans ended in different places."""
        return sum(len(found) > 1 for found in self.reached.values())


class UnevenSource(KafkaSource):
    """A source to which records come in larger or smaller pieces, sooner or later."""

    def __init__(
        self,
        config: KafkaSourceConfig,
        attempts: Attempts,
        patch: pytest.MonkeyPatch,
        dice: random.Random,
        clock: UnevenClock | None,
    ) -> None:
        super().__init__(config)
        self._attempts, self._patch, self._dice = attempts, patch, dice
        self._clock = clock

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        self._patch.setattr(reading, "MESSAGES_PER_CALL", self._dice.choice([2, 3]))
        self._patch.setattr(fetched, "RECORDS_PER_PIECE", self._dice.choice([2, 5, 9]))
        if self._clock is not None:
            self._clock.dice = self._dice
        try:
            super().run(ctx, collector)
        finally:
            if self._clock is not None:
                self._clock.dice = None
        self._attempts.note(ctx)


@pytest.fixture
def topic(kafka: KafkaCluster) -> TestTopic:
    """A topic whose records are small and large in turn, so that none tells of the next."""
    made = TestTopic.create(kafka.bootstrap, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        made.produce(
            [
                json.dumps({"n": n, "filler": "x" * (20_000 * (n // RUN % 2))}).encode()
                for n in range(partition * PER_PARTITION, (partition + 1) * PER_PARTITION)
            ],
            partition,
        )
    return made


@pytest.mark.slow
@pytest.mark.parametrize("cut_by", ["size", "time"])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_counts_once_where_attempts_at_an_epoch_end_in_different_places(
    topic: TestTopic, monkeypatch: pytest.MonkeyPatch, cut_by: str, seed: int
) -> None:
    dice, attempts, clock = random.Random(seed), Attempts(), UnevenClock()
    moved = clock if cut_by == "time" else None
    budget = SourceBudget(rows=60) if moved else SourceBudget(size_bytes=50_000)
    registry = default_registry(load_plugins=False)
    registry.add(
        "uneven",
        KafkaSourceConfig,
        lambda config: UnevenSource(config, attempts, monkeypatch, dice, moved),
    )
    source = pen.kafka(topic.name, servers=topic.servers, schema={"n": int}, end="latest")
    out, pipeline = pen.list_sink(a_topic("list")), pen.Pipeline("cut", registry=registry)
    rows = pipeline.read("in", OperatorSpec("uneven", source.source_spec().config))
    # Behind an exchange, consumers may hear of two attempts of one task.
    rows.rebalance().write("out", out)
    job = LocalJob(
        pipeline,
        clock=clock,
        chaos=Chaos(0.35, seed=seed),
        settings=DriverSettings(budget=budget, adapts_budget=False, torn_limit=50),
        registry=registry,
    )
    status = job.run_until_done(
        Fault(FaultMode.CRASH_BEFORE, at=60 + 20 * seed), parallelism=2
    )
    assert sorted(row["n"] for row in out.rows()) == [*range(PARTITIONS * PER_PARTITION)]
    assert status.phase == "finished"
    assert attempts.cut > 0
    assert attempts.differing > 0
