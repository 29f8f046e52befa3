"""Tables: what operators keep state in, each the fold of an ordered list of state files.

`table` is the contract; one module per kind of table; `table_manager` owns all tables of
one subtask; `compaction` plans which files to merge.
"""
