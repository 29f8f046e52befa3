"""What runs where the rows are: one task of a superstep, on any executor.

`task` runs a chain over the records of an epoch, and its worker keeps chains between epochs;
`exchange` checks and routes records, `wire` encodes them. The driver is not known here.
"""
