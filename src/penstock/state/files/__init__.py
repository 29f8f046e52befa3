"""State files: one immutable Parquet file each, how it is encoded, cached and migrated.

`state_file` is the value and the pure list algebra over it; the rest reads and writes.
No table semantics live here: what a list of files means is the tables' business.
"""
