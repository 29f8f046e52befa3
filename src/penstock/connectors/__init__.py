"""Sources and sinks, one file per system, each of the same shape: spec, source, sink."""
