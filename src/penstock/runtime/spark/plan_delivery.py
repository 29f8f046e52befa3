"""How the plan of an epoch reaches its tasks: beside the job, or inside of it.

A DataFrame whose tasks hold no plan is the same in every epoch: built once, it only runs
again, which saves a third of a small epoch. The plan then travels as a local property of the
job, which Spark sends along with every task. One that is too large for that, because it
would be sent as often as there are tasks, goes into the tasks' closure, which executors
fetch once; the DataFrame is then built anew. So it is behind Spark Connect, too, which has
no local properties.
"""

import base64
from functools import lru_cache

from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.errors import InternalError
from penstock.graph.logical import UserFunction
from penstock.operators.user_functions import pickle_function, unpickle_function
from penstock.runtime.epoch_plan import EpochPlan
from penstock.runtime.spark.contexts import context_of

_PROPERTY = "penstock.epoch"
_WHAT = "the plan of an epoch"
LARGEST_PROPERTY_CHARACTERS = 16 << 10


def send_beside(session: SparkSession, plan: EpochPlan) -> bool:
    """Attach a plan to the jobs that this thread starts next; tell whether that can be."""
    context = context_of(session)
    if context is None:
        return False
    pickled = pickle_function(plan, _WHAT).pickled
    text = base64.b64encode(pickled).decode("ascii")
    if len(text) > LARGEST_PROPERTY_CHARACTERS:
        return False
    context.setLocalProperty(_PROPERTY, text)
    return True


def plan_beside() -> EpochPlan:
    """Return the plan that was sent beside the job of this task."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_PROPERTY)
    if text is None:
        raise InternalError("a task of a superstep was started without a plan")
    return _decoded(text)


@lru_cache(maxsize=2)
def _decoded(text: str) -> EpochPlan:
    plan = unpickle_function(UserFunction(_WHAT, base64.b64decode(text)))
    if not isinstance(plan, EpochPlan):
        raise InternalError(
            f"a task was sent {type(plan).__name__} as the plan of its epoch"
        )
    return plan
