"""Running a graph: compile it to supersteps, run epochs on an executor, publish them.

`plan` holds the values that the others exchange, `task` runs one task, `driver` owns the loop,
and an `Executor` runs the tasks: `in_process` or `spark`. Only `runtime.spark` uses Spark.
"""
