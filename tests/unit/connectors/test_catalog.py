from penstock.catalog import default_registry
from penstock.operators.stateless import Union, UnionConfig

KINDS = {
    "filter", "select", "with_columns", "map_batches", "flat_map", "key_by", "union",
    "process", "source", "watermark", "list_source", "list_sink", "impulse", "stdout",
}  # fmt: skip


def test_all_built_in_kinds_are_known() -> None:
    assert set(default_registry().constructors) >= KINDS


def test_registries_are_independent() -> None:
    first, second = default_registry(), default_registry()

    first.add("other", UnionConfig, Union)

    assert "other" in first.constructors
    assert "other" not in second.constructors
