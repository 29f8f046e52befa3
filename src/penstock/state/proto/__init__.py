"""Durable messages: `state.proto` and the code generated from it by `make proto`.

Field numbers are never reused. Only `protocol.codec`, state files and tables build messages.
"""
