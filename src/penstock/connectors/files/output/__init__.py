"""What a files sink writes: rows that wait, files that are staged, merged and committed.

`open_parts`, `parts_sink`, `staging` and `waiting` are used by other sinks, too, and know nothing
of how files are committed. Every step may be repeated by another process.
"""
