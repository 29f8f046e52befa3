"""Changelogs: rows that say how a table changes, and the steps that make or rewrite them.

See `docs/design/changelogs.md`.
"""
