"""What users write: pipelines and streams, a fluent surface over the logical graph.

Building a pipeline runs nothing and touches no store. Every step becomes an operator of the
graph, by kind and config; this package knows no operator that a plug-in could not add.
"""
