"""The graphs whose plans are kept as text beside this file: one for every rule of compilation."""

from penstock.graph.logical import LogicalGraph
from tests.builders.graphs import a_graph

PLANS: dict[str, LogicalGraph] = {
    "chaining": a_graph(
        "read -> filter",
        "filter -> map",
        "map -> write",
        parallelism={"read": 2, "filter": 2, "map": 2, "write": 2},
    ),
    "by-key": a_graph(
        "read -> filter",
        "filter -k> count",
        "count -> write",
        parallelism={"read": 2, "filter": 2, "count": 3, "write": 3},
    ),
    "rebalance": a_graph("read -r> map", "map -> write"),
    "broadcast": a_graph("read -> map", "rules -b> map", parallelism={"read": 2, "map": 2}),
    "union-of-two-sources": a_graph(
        "left -> union",
        "right -> union",
        "union -> write",
        parallelism={"left": 2, "right": 2, "union": 2, "write": 2},
    ),
    "branch": a_graph("read -> odd", "read -> even", "odd -> tagged", "tagged -> write"),
    "diamond": a_graph(
        "read -> left", "read -> right", "left -> join", "right -> join", "join -> write"
    ),
    "diamond-through-an-exchange": a_graph(
        "read -> left", "read -k> right", "left -k> join", "right -k> join"
    ),
    "several-sinks": a_graph(
        "read -> raw", "read -k> count", "count -> hot", "count -r> archive"
    ),
    "level-skipping-edge": a_graph(
        "read -k> first", "first -k> second", "second -k> third", "read -b> third"
    ),
    "different-parallelism": a_graph(
        "read -r> parse",
        "read -r> other",
        "parse -k> count",
        "other -k> count",
        "count -r> write",
        parallelism={"read": 2, "parse": 4, "other": 3, "count": 5},
    ),
    "forward-edge-that-cannot-be-fused": a_graph(
        "read -> enrich",
        "table -k> enrich",
        "enrich -> write",
        parallelism={"read": 3, "table": 2, "enrich": 3, "write": 3},
    ),
    "same-stream-into-two-inputs": a_graph("read -> pair", "read -> pair"),
    "two-jobs-in-one": a_graph("a -> b", "x -k> y"),
}
