"""Ranking: the first rows of each key by an order, and one row of several that are equal.

Each file is one operator. `order` has the rules they share: which row comes first, and how rows
are found that do. Nothing here depends on the order in which rows come, but `deduplicate` where it
emits the first row of a key at once.
"""
