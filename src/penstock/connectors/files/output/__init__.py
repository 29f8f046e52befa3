"""What a files sink writes: rows that wait, files that are staged, merged and committed.

Nothing here knows how rows reach the sink. Every step may be repeated by another process.
"""
