"""Where rows come from and go to: one file or folder per system.

It holds the function that users call, the config that this puts into a graph, and the source
or sink itself. Nothing here knows how epochs run. Import from the files: a connector's library
is loaded only where it is used.
"""
