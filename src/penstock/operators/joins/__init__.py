"""Joins of two streams: one file per kind of join, and the rules that all of them share.

A join by event time is an operator with two inputs, which are sent to it by their join keys. What
these have in common is in `sides` and `matching`. Lookup joins have one input, or a second one
that every subtask gets whole; what they have in common is in `lookup_join`.
"""
