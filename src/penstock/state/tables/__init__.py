"""Tables: what operators keep state in, each the fold of an ordered list of state files.

`table` is the contract of all kinds, and each kind has a module. `table_manager` owns all
tables of one subtask. `compaction` plans which files to merge.
"""
