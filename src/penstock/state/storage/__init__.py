"""The object-store seam: one small protocol, its implementations, URLs and a probe.

No decision about checkpoints lives here; no other package talks to a store library.
"""
