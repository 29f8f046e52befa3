"""The driver: plans epochs, checks what came back, publishes, commits, starts again.

`driver` owns the loop, `decide` says what comes next, `session` is one claim of a job. Tasks
are known here only through `runtime.plan`: an executor runs them.
"""
