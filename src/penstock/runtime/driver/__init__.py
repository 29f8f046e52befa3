"""The driver: plans epochs, checks the reports, publishes, commits, and restarts after failures.

`driver` owns the loop, `decide` chooses the next action, `session` is one claim of a job. Tasks
appear here only as values of `runtime.plan`: an executor runs them.
"""
