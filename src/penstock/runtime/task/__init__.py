"""What runs where the rows are: one task of a superstep, on any executor.

`task` runs a chain over the records of an epoch, `exchange` checks and routes them, `wire`
encodes them, `worker` keeps chains and caches between epochs. The driver is not known here.
"""
