"""What processes rows: the contracts of operators and sources, and the loop that drives them.

Everything here runs inside one subtask and sees one epoch at a time. Nothing here depends on
where it runs, how rows travel between subtasks, or how epochs are published.
"""
