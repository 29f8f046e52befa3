"""State: tables kept in incremental Parquet checkpoints under a fenced protocol.

From the bottom: `proto` (durable messages), `storage` (the object store seam), `protocol`
(pure decisions about checkpoints), `files` (state files: encoding, cache, migration),
`checkpoints` (the protocol carried out against a store), `tables` (what operators use).
"""
