"""Running a graph: compile it to supersteps, run epochs on an executor, publish them.

`physical` cuts the graph, `superstep` is what a task does, `driver` owns the loop, and an
`Executor` says where tasks run. Only `runtime.spark` knows Spark.
"""
