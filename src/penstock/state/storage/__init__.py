"""Object stores: one small protocol, its implementations, URLs and a probe.

This package makes no decision about checkpoints. No other package imports a store library.
"""
