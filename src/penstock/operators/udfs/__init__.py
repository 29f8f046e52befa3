"""User-defined functions: operators that add a column computed by a function of the user.

Python functions by row or by batch, `async` functions with bounded concurrency, and native
Polars plug-in libraries. Declarations are in `specs`.
Nothing here keeps state but the calls of async functions that wait for an answer.
"""
