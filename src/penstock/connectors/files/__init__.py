"""Files: Parquet, JSON lines and CSV in folders and buckets, read and written exactly once.

`connector` is what users call. `discovery` and `source` read, by the contract of `formats`;
`sink` and `commit` write, under the `names` of one module. `parquet` and `jsonl` do both,
`csv` reads; `text` is what the formats of text share.
"""
