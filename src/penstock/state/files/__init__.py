"""State files: one immutable Parquet file each, how it is encoded, cached and migrated.

`state_file` holds the value and the pure algebra of file lists; the other modules read and
write. The meaning of a list of files is defined by the tables, not here.
"""
