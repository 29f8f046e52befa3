"""The checkpoint protocol, pure: facts in, decisions out, storage requests as values.

Imports neither storage nor Arrow, reads no clock and draws no randomness. The workflows
are generators that yield the storage call they want next, so that the same code runs
against a real store and under an explorer that interleaves drivers and injects faults.
"""
