"""Running supersteps on Spark: the only package that uses pyspark.

An epoch is one Spark job, a superstep one stage. A task calls `run_task`, the same function
that runs in process; this package only brings records to it and takes them away.
"""
