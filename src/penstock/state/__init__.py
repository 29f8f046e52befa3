"""State: tables kept in incremental Parquet checkpoints under a fenced protocol.

From the bottom: `proto` (durable messages), `storage` (object stores), `protocol` (pure
decisions about checkpoints), `files` (state files: encoding, cache, migration), `checkpoints`
(the protocol run against a store), `tables` (what operators use).
"""
