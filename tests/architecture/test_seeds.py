"""Every name of the specification is found in docs/seeds.md, and leads to code that exists."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.project import (
    ROOT,
    SOURCE,
    python_files,
    resolve,
    table_rows,
)

NAMES = {
    "000": """
        MigratableState MigratableState::VERSION MigratableState::PreviousVersion
        MigratableState::migrate
        CheckpointParquetMetadata CheckpointParquetMetadata::state_version
        Table Table::Checkpointer Table::ConfigMessage Table::TableCheckpointMessage
        Table::TableSubtaskCheckpointMetadata Table::from_config Table::epoch_checkpointer
        Table::merge_checkpoint_metadata Table::subtask_metadata_from_table
        Table::apply_compacted_checkpoint Table::compact_data Table::files_to_keep
        Table::table_type
        ErasedTable ErasedTable::checked_proto_decode
        TableEpochCheckpointer TableEpochCheckpointer::SubTableCheckpointMessage
        TableEpochCheckpointer::insert_data TableEpochCheckpointer::finish
        ErasedCheckpointer CompactionConfig DataTuple BlindDataTuple table_checkpoint_path
        TableConfig TableEnum TableData CheckpointMessage TableCheckpointMetadata
        TableSubtaskCheckpointMetadata TaskInfo StorageProviderRef StateError Data
    """,
    "001": """
        TableManager TableManager::checkpoint epoch min_epoch watermark then_stop
        BackingStore ParquetBackend ParquetBackend::write_operator_checkpoint_metadata
        OperatorCheckpointMetadata Controller
        {checkpoint_url}/{job_id}/checkpoints/{epoch}/
        operator-{operator_id}-{subtask_index}.metadata
    """,
    "002": """
        GlobalKeyedTable GlobalKeyedTable::table_name GlobalKeyedTable::task_info
        GlobalKeyedTable::storage_provider GlobalKeyedTable::files
        GlobalKeyedTable::state_version GlobalKeyedTable::load_with_version
        GlobalKeyedTable::compact_data
        GlobalKeyedView GlobalKeyedView::get GlobalKeyedView::insert GlobalKeyedView::remove
        GlobalKeyedTableCheckpointer GlobalKeyedTableCheckpointer::checkpoint
        GLOBAL_KEY_VALUE_SCHEMA GlobalKeyedTableConfig OperatorContext::table_manager
        TableManager::get_global_keyed_state
        Key StateMessage bincode
    """,
    "003": """
        time-keyed_maps global_keyed_maps expiring_state incremental_checkpointing
        schema_evolution global_checkpoint_record per-operator_metadata data_files
        object_storage_backend
    """,
    "004": """
        OperatorConstructor OperatorConstructor::ConfigT OperatorConstructor::with_config
        ConstructedOperator ErasedConstructor
        ArrowOperator ArrowOperator::name ArrowOperator::tables ArrowOperator::tick_interval
        ArrowOperator::on_start ArrowOperator::process_batch
        ArrowOperator::process_batch_index ArrowOperator::handle_checkpoint
        ArrowOperator::handle_commit ArrowOperator::handle_watermark_int
        ArrowOperator::handle_tick ArrowOperator::on_close ArrowOperator::display
        SourceOperator SourceOperator::name SourceOperator::tables SourceOperator::on_start
        SourceOperator::run SourceOperator::on_close SourceFinishType
        OperatorNode SourceNode ChainedOperator run_operator run_source chain_processing
        Registry Registry::new Registry::add Registry::constructors Registry::load_dylib
        OperatorContext SourceContext ArrowCollector DisplayableOperator DataflowResult
        CheckpointBarrier Watermark SignalMessage RecordBatch
        barrier_alignment watermark_merging two-phase_commit graceful_shutdown
    """,
}
"""What each seed names. Principles, which have no name of one word, are joined by `_`."""

ROWS = table_rows(
    (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8"),
    ("Seed name", "Seed", "Where", "Note"),
)
CONTRACT_ONLY = "contract only: "
"""Begins the note of a name that the package itself has no use for, and says why it stays."""


def name_in(row: dict[str, str]) -> str:
    return row["Seed name"].strip("`")


def test_every_name_of_the_seeds_is_in_the_table_once_per_seed() -> None:
    wanted = sorted((seed, name) for seed, names in NAMES.items() for name in names.split())
    listed = sorted((row["Seed"], name_in(row).replace(" ", "_")) for row in ROWS)
    assert listed == wanted


def test_a_seed_name_leads_to_code() -> None:
    offenders = []
    for row in ROWS:
        where = row["Where"].strip("`")
        try:
            resolve(where)
        except (ImportError, AttributeError) as error:
            offenders.append(f"{name_in(row)} → {where}: {error}")
    assert offenders == []


def test_a_rename_gives_its_reason() -> None:
    offenders = []
    for row in ROWS:
        where = row["Where"].strip("`")
        last = name_in(row).rpartition("::")[2]
        is_same_name = where.replace(":", ".").rpartition(".")[2] == last
        if not is_same_name and not row["Note"]:
            offenders.append(f"{name_in(row)} became {where}: say why")
    assert offenders == []


def uses_in(path: Path) -> Iterator[str]:
    """Yield every name that a module uses outside of the definition of that name.

    Importing and defining a name are no uses; a module counts as used by importing from it.
    """
    pending: list[tuple[ast.AST, frozenset[str]]] = [
        (ast.parse(path.read_text(encoding="utf-8")), frozenset())
    ]
    while pending:
        node, inside = pending.pop()
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                inside |= {name}
            case ast.ImportFrom(module=str(module)):
                yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                if name not in inside:
                    yield name
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text  # a hook that is called by name, an annotation in quotes
        pending += [(child, inside) for child in ast.iter_child_nodes(node)]


def test_a_seed_name_has_a_caller_or_says_why_it_has_none() -> None:
    files = [path for path in python_files() if path.is_relative_to(SOURCE)]
    used = {name for path in files for name in uses_in(path)}
    offenders = []
    for row in ROWS:
        where = row["Where"].strip("`")
        last = where if where in used else where.replace(":", ".").rpartition(".")[2]
        if last not in used and not row["Note"].startswith(CONTRACT_ONLY):
            offenders.append(f"{name_in(row)} → {where}")
    rule = f"use each name in the package, or begin its note with {CONTRACT_ONLY!r} and say why"
    assert not offenders, "\n".join([rule, *offenders])
