"""The journal: what a driver leaves to read below its job, and what others ask of it there.

Best effort, and never needed for recovery.
"""
