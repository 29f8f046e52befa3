"""The checkpoint protocol: pure decisions, with storage requests as values.

This package imports neither storage nor Arrow, reads no clock and draws no randomness. Its
workflows are generators that yield their next storage request, so that the same code runs
against a real store and in an explorer that interleaves drivers and injects faults.
"""
