"""Where rows come from and go to: one file or folder per system.

Each holds the function that users call, the config that this function puts into a graph, and
the source or sink itself. Nothing here depends on how epochs run. Import from the files: so a
connector's library is loaded only where it is used.
"""
