"""Values every layer speaks: ids, key ranges, hashes, schemas, signals, clock, settings.

No I/O, no knowledge of operators, tables or Spark. Nothing is re-exported here: import
the module that defines a name, so that pure code never drags Arrow in.
"""
