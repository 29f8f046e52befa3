"""Aggregates that merge: partials of rows, partials of partials, and results of those.

The same plan serves windows and updating aggregates: rows become partials before they are
sent to the owner of their key, so an exchange moves one row per group and not one per row.
"""
