"""One source of two: history first, then the live stream, without a gap or an overlap.

It knows its two sides by the contract of sources alone, and `handover` has the only thing they
must agree on: the point at which the one ends and the other begins.
"""
