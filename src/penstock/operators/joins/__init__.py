"""Joins of two streams: one file per kind of join, and the rules that all of them share.

Each join is an operator with two inputs, which are sent to it by their join keys. No join here
knows another one; what they have in common is in `sides` and `matching`.
"""
