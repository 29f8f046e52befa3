"""User-defined functions: operators that add a column computed by a function of the user.

There are Python functions by row or by batch, `async` functions with bounded concurrency, and
native Polars plug-in libraries. Their declarations are in `specs`. Only async functions keep
state: the calls that have no answer yet.
"""
