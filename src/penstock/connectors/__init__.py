"""Sources and sinks, one file per system, each of the same shape: spec, source, sink.

A connector is an ordinary operator behind a function that users call for its spec. What
third parties add comes in through entry points; `catalog` knows the built-in ones.
"""
