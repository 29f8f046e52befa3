"""The fluent surface: building a pipeline runs nothing, it only makes a logical graph."""
