"""Running supersteps on Spark: the only package that knows pyspark.

An epoch is one Spark job, a superstep one stage. What a task does is `run_task`, the same
function that runs in process; here is only how records reach it and leave it.
"""
