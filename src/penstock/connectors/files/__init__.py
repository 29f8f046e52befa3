"""Files: Parquet, JSON lines and CSV in folders and buckets, read and written exactly once.

`connector` is what users call. `discovery`, `source` and one module per format read;
`sink`, `staging` and `commit` write; `names` and `encoding` are shared by both sides.
"""
