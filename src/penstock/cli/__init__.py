"""The command line, one file per kind of command.

It prints the values of `penstock.inspect`, and asks jobs for something by their journal. Nothing is
computed here.
"""
