"""Updating aggregates: results per key that are emitted again whenever they change.

    rows ─ combine ─▶ partials ─ by key ─▶ updating_aggregate ─▶ changelog ─ to_debezium ─▶

`combine` holds nothing longer than an epoch; the partials of every key are in a `KeyedTable`.
Over a changelog it is `retracting_aggregate` that keeps them, and takes rows out again.
"""
