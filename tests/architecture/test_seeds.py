"""Every name of the specification is found in docs/seeds.md, and leads to code that exists."""

import pytest

from tests.architecture.project import ROOT, resolve, table_rows

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
        GLOBAL_KEY_VALUE_SCHEMA GlobalKeyedTableConfig TableManager::get_global_keyed_state
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
LATER = "later: "


def name_in(row: dict[str, str]) -> str:
    return row["Seed name"].strip("`")


def test_every_name_of_the_seeds_is_in_the_table_once_per_seed() -> None:
    wanted = sorted((seed, name) for seed, names in NAMES.items() for name in names.split())
    listed = sorted((row["Seed"], name_in(row).replace(" ", "_")) for row in ROWS)
    assert listed == wanted


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['Seed']}-{name_in(row).replace('/', '.')}"
)
def test_a_seed_name_leads_to_code(row: dict[str, str]) -> None:
    where = row["Where"].strip("`")
    if where.startswith(LATER):
        assert row["Seed"] == "004", "only operators are still to come"
        assert where.removeprefix(LATER).startswith(
            ("penstock.operators", "penstock.runtime")
        )
    else:
        resolve(where)


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['Seed']}-{name_in(row).replace('/', '.')}"
)
def test_a_rename_gives_its_reason(row: dict[str, str]) -> None:
    last = name_in(row).rpartition("::")[2]
    where = row["Where"].strip("`").removeprefix(LATER)
    is_same_name = where.replace(":", ".").rpartition(".")[2] == last
    assert is_same_name or row["Note"], f"{name_in(row)} became {where}: say why"
