"""The first superstep as a DataFrame: a partition per task, in the tasks' order.

    range(n) ─ mapInArrow(task)                  chains whose sources read by themselves
    rows.repartition(p) ─ mapInArrow(task)       chains that are fed a DataFrame in this epoch

All of them are one union, so an epoch stays one job, and the number of a partition is that
of its task over the whole union.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from penstock.runtime.epoch_plan import EpochPlan
from penstock.runtime.physical import Chain, PhysicalPlan
from penstock.runtime.spark.exchange import SPARK_SCHEMA
from penstock.runtime.spark.fed_frames import fed_frame
from penstock.runtime.spark.task import SuperstepTask


def is_fed(plan: PhysicalPlan, epoch: EpochPlan) -> bool:
    """Tell whether any source is brought a DataFrame in this epoch."""
    chains = (plan.chains[number] for number in plan.supersteps[0].chains)
    return any(_fed_by(chain, epoch) is not None for chain in chains)


def first_superstep(
    session: SparkSession, plan: PhysicalPlan, epoch: EpochPlan, task: SuperstepTask
) -> DataFrame:
    """Return what runs the tasks of level 0."""
    parts = list(_parts(session, plan, epoch, task))
    whole = parts[0]
    if _fed_by(plan.chains[plan.supersteps[0].chains[0]], epoch) is not None:
        # A union is planned by the session of what it begins with, and that must be ours:
        # another one may cut the epoch into several jobs. Spark removes what has no rows.
        nothing = session.range(0, 1, 1, 1).where("false").toDF("id")
        whole = nothing.mapInArrow(task, SPARK_SCHEMA).union(whole)
    for part in parts[1:]:
        whole = whole.union(part)
    return whole


def _parts(
    session: SparkSession, plan: PhysicalPlan, epoch: EpochPlan, task: SuperstepTask
) -> Iterator[DataFrame]:
    """Yield the parts of the union; chains side by side that read by themselves are one."""
    waiting = 0
    for number in plan.supersteps[0].chains:
        chain = plan.chains[number]
        name = _fed_by(chain, epoch)
        if name is None:
            waiting += chain.parallelism
            continue
        if waiting:
            yield _placeholders(session, waiting, task)
            waiting = 0
        rows = fed_frame(name).repartition(chain.parallelism)
        yield rows.mapInArrow(replace(task, is_fed=True), SPARK_SCHEMA)
    if waiting:
        yield _placeholders(session, waiting, task)


def _placeholders(session: SparkSession, count: int, task: SuperstepTask) -> DataFrame:
    return session.range(0, count, 1, count).toDF("id").mapInArrow(task, SPARK_SCHEMA)


def _fed_by(chain: Chain, epoch: EpochPlan) -> str | None:
    """Return what the chain's source is fed from in this epoch; its source comes first."""
    assignments = epoch.assignments.get(chain.operators[0], ())
    return next((part.fed for part in assignments), None)
