"""Where rows come from and go to: one file per system, and the catalog of all kinds.

A file holds the function that users call, which returns plain config, the source or sink
itself, and its constructor. Nothing here knows how epochs run. Import from the files: a
connector's library is loaded only by whoever uses it.
"""
