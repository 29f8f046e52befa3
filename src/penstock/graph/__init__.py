"""The user's pipeline as data: nodes, edges, and the problems found in them.

Graphs are frozen values that are compared, stored and drawn without running anything.
Operators are named by kind and config; this package cannot build one. User functions and
objects are the only pickled values, and this package never unpickles them.
"""
