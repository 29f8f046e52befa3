"""Delta tables: read version by version, written exactly once, merged into, and looked up.

`connector` has what users call. Only `client` imports the client library, `deltalake`, and only
when a table is opened. Data files go through our own stores; versions become visible through the client.
"""
