"""Plans and reports: the values that driver, tasks and executors exchange.

`physical` cuts the graph into supersteps, `epoch_plan` fixes one epoch, `executor` is the seam
between driver and engine, with the reports that tasks send back. Nothing here runs anything.
"""
