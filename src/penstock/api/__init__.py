"""What users write: pipelines and streams, a fluent surface over the logical graph.

Building a pipeline runs nothing and touches no store. Every step becomes an operator of the
graph, by kind and config. No operator is special here: a plug-in can add others of equal rank.
"""
