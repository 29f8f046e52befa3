"""What the user asked for, as data: nodes, edges, and what is wrong with them.

Plain frozen values that are compared, stored and drawn without running anything. Operators
are named by kind and config; nothing here knows how one is built. User functions and
objects are the only pickled things, and this package never unpickles them.
"""
