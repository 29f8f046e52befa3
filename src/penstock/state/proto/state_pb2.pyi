from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PinKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIN_KIND_MISSING: _ClassVar[PinKind]
    PIN_KIND_SAVEPOINT: _ClassVar[PinKind]
    PIN_KIND_RESTORE: _ClassVar[PinKind]
    PIN_KIND_BRANCH: _ClassVar[PinKind]

class TableEnum(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISSING_TABLE_TYPE: _ClassVar[TableEnum]
    GLOBAL_KEYED_TABLE: _ClassVar[TableEnum]
    TIME_KEYED_TABLE: _ClassVar[TableEnum]
    KEYED_TABLE: _ClassVar[TableEnum]

class TimeDomain(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISSING_TIME_DOMAIN: _ClassVar[TimeDomain]
    EVENT_TIME: _ClassVar[TimeDomain]
    PROCESSING_TIME: _ClassVar[TimeDomain]
PIN_KIND_MISSING: PinKind
PIN_KIND_SAVEPOINT: PinKind
PIN_KIND_RESTORE: PinKind
PIN_KIND_BRANCH: PinKind
MISSING_TABLE_TYPE: TableEnum
GLOBAL_KEYED_TABLE: TableEnum
TIME_KEYED_TABLE: TableEnum
KEYED_TABLE: TableEnum
MISSING_TIME_DOMAIN: TimeDomain
EVENT_TIME: TimeDomain
PROCESSING_TIME: TimeDomain

class CheckpointRef(_message.Message):
    __slots__ = ("job_id", "generation", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    generation: int
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ObjectRef(_message.Message):
    __slots__ = ("path", "size_bytes", "checksum")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    checksum: int
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("magic", "protocol_version", "kind", "body", "body_checksum")
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    magic: str
    protocol_version: int
    kind: str
    body: bytes
    body_checksum: int
    def __init__(self, magic: _Optional[str] = ..., protocol_version: _Optional[int] = ..., kind: _Optional[str] = ..., body: _Optional[bytes] = ..., body_checksum: _Optional[int] = ...) -> None: ...

class ClaimRecord(_message.Message):
    __slots__ = ("job_id", "generation", "owner_token", "created_at_micros", "first_epoch", "origin", "restore", "restored")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    generation: int
    owner_token: str
    created_at_micros: int
    first_epoch: int
    origin: CheckpointRef
    restore: CheckpointRef
    restored: CheckpointRef
    def __init__(self, job_id: _Optional[str] = ..., generation: _Optional[int] = ..., owner_token: _Optional[str] = ..., created_at_micros: _Optional[int] = ..., first_epoch: _Optional[int] = ..., origin: _Optional[_Union[CheckpointRef, _Mapping]] = ..., restore: _Optional[_Union[CheckpointRef, _Mapping]] = ..., restored: _Optional[_Union[CheckpointRef, _Mapping]] = ...) -> None: ...

class CheckpointManifest(_message.Message):
    __slots__ = ("ref", "parent", "created_at_micros", "processing_time_micros", "needs_commit", "operators")
    REF_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_TIME_MICROS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_COMMIT_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    ref: CheckpointRef
    parent: CheckpointRef
    created_at_micros: int
    processing_time_micros: int
    needs_commit: bool
    operators: _containers.RepeatedCompositeFieldContainer[OperatorEntry]
    def __init__(self, ref: _Optional[_Union[CheckpointRef, _Mapping]] = ..., parent: _Optional[_Union[CheckpointRef, _Mapping]] = ..., created_at_micros: _Optional[int] = ..., processing_time_micros: _Optional[int] = ..., needs_commit: bool = ..., operators: _Optional[_Iterable[_Union[OperatorEntry, _Mapping]]] = ...) -> None: ...

class OperatorEntry(_message.Message):
    __slots__ = ("operator_id", "parallelism", "subtasks", "input_watermarks")
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    INPUT_WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    operator_id: str
    parallelism: int
    subtasks: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    input_watermarks: _containers.RepeatedCompositeFieldContainer[InputWatermark]
    def __init__(self, operator_id: _Optional[str] = ..., parallelism: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ..., input_watermarks: _Optional[_Iterable[_Union[InputWatermark, _Mapping]]] = ...) -> None: ...

class InputWatermark(_message.Message):
    __slots__ = ("event_time_micros", "idle", "producer", "reached_micros")
    EVENT_TIME_MICROS_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    REACHED_MICROS_FIELD_NUMBER: _ClassVar[int]
    event_time_micros: int
    idle: bool
    producer: str
    reached_micros: int
    def __init__(self, event_time_micros: _Optional[int] = ..., idle: bool = ..., producer: _Optional[str] = ..., reached_micros: _Optional[int] = ...) -> None: ...

class EpochRecord(_message.Message):
    __slots__ = ("ref", "parent", "created_at_micros")
    REF_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ref: CheckpointRef
    parent: CheckpointRef
    created_at_micros: int
    def __init__(self, ref: _Optional[_Union[CheckpointRef, _Mapping]] = ..., parent: _Optional[_Union[CheckpointRef, _Mapping]] = ..., created_at_micros: _Optional[int] = ...) -> None: ...

class CommitMarker(_message.Message):
    __slots__ = ("ref", "writer_generation", "created_at_micros")
    REF_FIELD_NUMBER: _ClassVar[int]
    WRITER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ref: CheckpointRef
    writer_generation: int
    created_at_micros: int
    def __init__(self, ref: _Optional[_Union[CheckpointRef, _Mapping]] = ..., writer_generation: _Optional[int] = ..., created_at_micros: _Optional[int] = ...) -> None: ...

class RetentionRecord(_message.Message):
    __slots__ = ("job_id", "sequence", "writer_token", "created_at_micros", "pins", "collecting", "collected_before")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    COLLECTING_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    sequence: int
    writer_token: str
    created_at_micros: int
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    collecting: _containers.RepeatedCompositeFieldContainer[CheckpointRef]
    collected_before: int
    def __init__(self, job_id: _Optional[str] = ..., sequence: _Optional[int] = ..., writer_token: _Optional[str] = ..., created_at_micros: _Optional[int] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ..., collecting: _Optional[_Iterable[_Union[CheckpointRef, _Mapping]]] = ..., collected_before: _Optional[int] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("name", "kind", "ref", "created_at_micros", "holder_job_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MICROS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: PinKind
    ref: CheckpointRef
    created_at_micros: int
    holder_job_id: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[PinKind, str]] = ..., ref: _Optional[_Union[CheckpointRef, _Mapping]] = ..., created_at_micros: _Optional[int] = ..., holder_job_id: _Optional[str] = ...) -> None: ...

class OperatorCheckpointMetadata(_message.Message):
    __slots__ = ("operator_metadata", "table_checkpoint_metadata", "table_configs", "commit_data", "bytes_written")
    class TableCheckpointMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TableSubtaskCheckpointMetadata
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TableSubtaskCheckpointMetadata, _Mapping]] = ...) -> None: ...
    class TableConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TableConfig
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TableConfig, _Mapping]] = ...) -> None: ...
    class CommitDataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    OPERATOR_METADATA_FIELD_NUMBER: _ClassVar[int]
    TABLE_CHECKPOINT_METADATA_FIELD_NUMBER: _ClassVar[int]
    TABLE_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_DATA_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    operator_metadata: OperatorMetadata
    table_checkpoint_metadata: _containers.MessageMap[str, TableSubtaskCheckpointMetadata]
    table_configs: _containers.MessageMap[str, TableConfig]
    commit_data: _containers.ScalarMap[str, bytes]
    bytes_written: int
    def __init__(self, operator_metadata: _Optional[_Union[OperatorMetadata, _Mapping]] = ..., table_checkpoint_metadata: _Optional[_Mapping[str, TableSubtaskCheckpointMetadata]] = ..., table_configs: _Optional[_Mapping[str, TableConfig]] = ..., commit_data: _Optional[_Mapping[str, bytes]] = ..., bytes_written: _Optional[int] = ...) -> None: ...

class OperatorMetadata(_message.Message):
    __slots__ = ("job_id", "operator_id", "epoch", "subtask_index", "parallelism", "watermark_micros")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MICROS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    operator_id: str
    epoch: int
    subtask_index: int
    parallelism: int
    watermark_micros: int
    def __init__(self, job_id: _Optional[str] = ..., operator_id: _Optional[str] = ..., epoch: _Optional[int] = ..., subtask_index: _Optional[int] = ..., parallelism: _Optional[int] = ..., watermark_micros: _Optional[int] = ...) -> None: ...

class TableConfig(_message.Message):
    __slots__ = ("table_type", "config", "state_version")
    TABLE_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    table_type: TableEnum
    config: bytes
    state_version: int
    def __init__(self, table_type: _Optional[_Union[TableEnum, str]] = ..., config: _Optional[bytes] = ..., state_version: _Optional[int] = ...) -> None: ...

class TableCheckpointMetadata(_message.Message):
    __slots__ = ("table_type", "data")
    TABLE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    table_type: TableEnum
    data: bytes
    def __init__(self, table_type: _Optional[_Union[TableEnum, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TableSubtaskCheckpointMetadata(_message.Message):
    __slots__ = ("subtask_index", "table_type", "data")
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    TABLE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    table_type: TableEnum
    data: bytes
    def __init__(self, subtask_index: _Optional[int] = ..., table_type: _Optional[_Union[TableEnum, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GlobalKeyedTableConfig(_message.Message):
    __slots__ = ("table_name", "description", "uses_two_phase_commit")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    USES_TWO_PHASE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    description: str
    uses_two_phase_commit: bool
    def __init__(self, table_name: _Optional[str] = ..., description: _Optional[str] = ..., uses_two_phase_commit: bool = ...) -> None: ...

class TimeKeyedTableConfig(_message.Message):
    __slots__ = ("table_name", "description", "arrow_schema", "key_columns", "time_column", "time_domain", "meaning")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TIME_COLUMN_FIELD_NUMBER: _ClassVar[int]
    TIME_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    description: str
    arrow_schema: bytes
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    time_column: str
    time_domain: TimeDomain
    meaning: str
    def __init__(self, table_name: _Optional[str] = ..., description: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., key_columns: _Optional[_Iterable[str]] = ..., time_column: _Optional[str] = ..., time_domain: _Optional[_Union[TimeDomain, str]] = ..., meaning: _Optional[str] = ...) -> None: ...

class KeyedTableConfig(_message.Message):
    __slots__ = ("table_name", "description", "arrow_schema", "key_columns", "ttl_micros", "ttl_domain", "time_column", "routing_columns")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TTL_MICROS_FIELD_NUMBER: _ClassVar[int]
    TTL_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    TIME_COLUMN_FIELD_NUMBER: _ClassVar[int]
    ROUTING_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    description: str
    arrow_schema: bytes
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    ttl_micros: int
    ttl_domain: TimeDomain
    time_column: str
    routing_columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, table_name: _Optional[str] = ..., description: _Optional[str] = ..., arrow_schema: _Optional[bytes] = ..., key_columns: _Optional[_Iterable[str]] = ..., ttl_micros: _Optional[int] = ..., ttl_domain: _Optional[_Union[TimeDomain, str]] = ..., time_column: _Optional[str] = ..., routing_columns: _Optional[_Iterable[str]] = ...) -> None: ...

class GlobalKeyedTableSubtaskCheckpointMetadata(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class GlobalKeyedTableCheckpointMetadata(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class TimeKeyedTableSubtaskCheckpointMetadata(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class TimeKeyedTableCheckpointMetadata(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class KeyedTableSubtaskCheckpointMetadata(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class KeyedTableCheckpointMetadata(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class StateFile(_message.Message):
    __slots__ = ("path", "epoch", "subtask_index", "level", "row_count", "size_bytes", "checksum", "footer_bytes", "footer_checksum", "min_time_micros", "max_time_micros", "min_key_hash", "max_key_hash", "state_version", "visible_first", "visible_last", "replaces", "last_expiry_micros")
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FOOTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOOTER_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    MIN_TIME_MICROS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_MICROS_FIELD_NUMBER: _ClassVar[int]
    MIN_KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    MAX_KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_FIRST_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_LAST_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    LAST_EXPIRY_MICROS_FIELD_NUMBER: _ClassVar[int]
    path: str
    epoch: int
    subtask_index: int
    level: int
    row_count: int
    size_bytes: int
    checksum: int
    footer_bytes: int
    footer_checksum: int
    min_time_micros: int
    max_time_micros: int
    min_key_hash: int
    max_key_hash: int
    state_version: int
    visible_first: int
    visible_last: int
    replaces: _containers.RepeatedScalarFieldContainer[str]
    last_expiry_micros: int
    def __init__(self, path: _Optional[str] = ..., epoch: _Optional[int] = ..., subtask_index: _Optional[int] = ..., level: _Optional[int] = ..., row_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., footer_bytes: _Optional[int] = ..., footer_checksum: _Optional[int] = ..., min_time_micros: _Optional[int] = ..., max_time_micros: _Optional[int] = ..., min_key_hash: _Optional[int] = ..., max_key_hash: _Optional[int] = ..., state_version: _Optional[int] = ..., visible_first: _Optional[int] = ..., visible_last: _Optional[int] = ..., replaces: _Optional[_Iterable[str]] = ..., last_expiry_micros: _Optional[int] = ...) -> None: ...
