"""Files: Parquet, JSON lines and CSV in folders and buckets, read and written exactly once.

Users call `connector`. `discovery` and `source` read, by the contract of `formats`; `sink` and
`output` write, and `names` has the names of all that they write. `parquet` and `jsonl` do
both, `csv` only reads; `text` is shared by the formats of text.
"""
