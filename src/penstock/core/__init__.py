"""Values that every layer uses: ids, key ranges, hashes, schemas, signals, clock, settings.

Only `settings` and `clock` read from outside the process; all else is pure. Nothing here
imports operators, tables or Spark. The package re-exports nothing: import the module that
defines a name, so that pure code does not load Arrow.
"""
