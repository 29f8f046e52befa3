"""A physical plan as text, for `explain` and for people who compare plans. Pure.

superstep 0: 2 tasks
  chain 0 x2, tasks 0-1: read → filter-1
    exchange 0 by-key(user): filter-1 → count[0], to chain 1
superstep 1: 1 task
  chain 1 x1, task 0: count
"""

from collections.abc import Iterator

from penstock.graph.logical import Exchange
from penstock.runtime.physical import Chain, ExchangeEdge, PhysicalPlan


def describe_plan(plan: PhysicalPlan) -> str:
    """Return the supersteps, their chains and what leaves each, a line each."""
    return "".join(f"{line}\n" for line in _lines(plan))


def _lines(plan: PhysicalPlan) -> Iterator[str]:
    for superstep in plan.supersteps:
        tasks = "1 task" if superstep.task_count == 1 else f"{superstep.task_count} tasks"
        yield f"superstep {superstep.level}: {tasks}"
        for number in superstep.chains:
            chain = plan.chains[number]
            yield f"  {_describe_chain(chain)}"
            yield from (
                f"    {_describe_exchange(plan, edge)}" for edge in plan.outgoing(number)
            )


def _describe_chain(chain: Chain) -> str:
    last = chain.first_task + chain.parallelism - 1
    tasks = (
        f"task {last}" if last == chain.first_task else f"tasks {chain.first_task}-{last}"
    )
    return f"chain {chain.number} x{chain.parallelism}, {tasks}: {_describe_links(chain)}"


def _describe_links(chain: Chain) -> str:
    """Show a straight chain by its operators, any other by its links."""
    pairs = list(zip(chain.operators, chain.operators[1:], strict=False))
    if [(edge.source, edge.target) for edge in chain.links] == pairs:
        return " → ".join(chain.operators)
    return f"{chain.operators[0]}; " + ", ".join(map(str, chain.links))


def _describe_exchange(plan: PhysicalPlan, edge: ExchangeEdge) -> str:
    by = ""
    if edge.exchange is Exchange.BY_KEY:
        by = f"({', '.join(edge.schema.key_columns)})"
    skipped = (
        plan.chains[edge.target_chain].level - plan.chains[edge.source_chain].level - 1
    )
    relayed = f", relayed by {skipped} supersteps" if skipped > 1 else ""
    relayed = ", relayed by 1 superstep" if skipped == 1 else relayed
    return (
        f"exchange {edge.number} {edge.exchange}{by}: {edge.edge}, to chain "
        f"{edge.target_chain}{relayed}"
    )
