"""One task of a superstep, on any executor: what runs where the rows are.

`task` runs a chain over the records of an epoch, and its worker keeps chains between epochs;
`exchange` checks and routes records, `wire` encodes them. Nothing here imports the driver.
"""
