"""Words that other libraries have for steps: what a stream answers to each of them.

A name that does not exist is still no attribute, so `hasattr` is false and tools that look for
optional methods are not misled. The error says what there is instead. Written for people who
come from Spark, Polars, pandas or Flink.
"""

_BY_KEY = (
    "key_by(…) sends rows by key; behind it come aggregate(…) for results that are updated, "
    "window(…).aggregate(…) for results per window, or process(…)"
)
_TOTAL = (
    'results over rows are aggregates: key_by(…).aggregate("a-name", n=pen.count(), '
    's=pen.sum("column")), or behind window(…)'
)
_JOIN = (
    'join("a-name", other, on="column", within=("-5m", "10m")) joins two streams by key and event '
    "time, without within all rows; docs/joins.md shows all kinds of joins"
)
_ONE_OF_EQUALS = (
    'deduplicate("a-name", on="id", ttl="1h") emits the first row of each key, with '
    'keep="earliest" that by event time, with keep="last" a changelog of the last one; pen.count_distinct("column") counts values'
)
_FIRST_ROWS = (
    'top("a-name", 10, by="price", per="auction") keeps the first rows of each key, '
    "window(…).top(10, by=…) those of windows; rank= adds the rank as a column"
)
_LOOK = (
    "preview(n) runs the pipeline up to here over a few rows; write(name, pen.list_sink(…)) "
    "collects all of them"
)
_NO_ORDER = (
    "a stream has no end and no order: windows close in order of time, and pen.first, pen.last, "
    "pen.min and pen.max choose rows"
)
_WRITE = (
    'write("a-name", sink) ends a stream, with a sink such as pen.files(folder, "parquet")'
)

_BY_HINT: dict[str, tuple[str, ...]] = {
    _BY_KEY: ("group_by", "groupBy", "groupby", "keyBy", "partition_by", "partitionBy"),
    _TOTAL: (
        "agg",
        "count",
        "sum",
        "min",
        "max",
        "mean",
        "avg",
        "reduce",
        "fold",
        "value_counts",
    ),
    _JOIN: (
        *("merge", "crossJoin", "join_asof", "join_where", "connect", "coGroup", "lookup"),
        *("interval_join", "intervalJoin", "cogroup", "window_join", "windowJoin"),
    ),
    _ONE_OF_EQUALS: (
        *("unique", "distinct", "n_unique", "dedup", "drop_duplicates"),
        *("dropDuplicates", "dropDuplicatesWithinWatermark", "keep_first"),
    ),
    _LOOK: (
        *("show", "head", "limit", "take", "tail", "collect", "fetch", "first", "sample"),
        *("to_pandas", "toPandas", "to_polars", "to_arrow", "toArrow", "describe"),
    ),
    _FIRST_ROWS: (
        "rank",
        "top_k",
        "nlargest",
        "nsmallest",
        "bottom_k",
        "row_number",
        "topk",
    ),
    _NO_ORDER: ("sort", "sort_values", "order_by", "orderBy", "shift", "diff"),
    _WRITE: (
        *("sink", "sink_parquet", "sink_csv", "write_parquet", "write_csv", "to_parquet"),
        *(
            "to_csv",
            "writeStream",
            "addSink",
            "add_sink",
            "insert_into",
            "sink_to",
            "sinkTo",
            "save",
        ),
    ),
    'write("a-name", pen.stdout()) prints rows': ("print", "pprint"),
    "filter(…) keeps rows": ("where", "query", "drop_nulls", "drop_nans", "dropna"),
    "with_columns(…) adds or replaces columns": (
        *(
            "withColumn",
            "withColumns",
            "with_column",
            "assign",
            "fill_null",
            "fillna",
            "cast",
        ),
        *("astype", "selectExpr", "eval"),
    ),
    'rename({"old": "new"}) renames columns': ("withColumnRenamed", "withColumnsRenamed"),
    "map(…) takes a function of one row, map_batches(…) of many, which is much faster": (
        *(
            "apply",
            "map_rows",
            "mapInPandas",
            "mapInArrow",
            "mapPartitions",
            "map_partitions",
        ),
        *("transform", "pipe", "for_each", "map_elements"),
    ),
    "flat_map(…) turns batches into any number of batches": (
        "explode",
        "flatMap",
        "unnest",
    ),
    "write(name, pen.for_each_epoch(…)) calls a function with every epoch's rows": (
        *("foreach", "foreachBatch", "foreach_batch"),
    ),
    "window(name, pen.tumbling(…)) cuts rows into windows": (
        *("rolling", "resample", "group_by_dynamic", "tumble", "tumbling", "sliding"),
        *("windowAll", "window_all", "timeWindow"),
    ),
    "watermark(name, column, delay=…) sets event time": (
        *("withWatermark", "with_watermark", "assign_timestamps_and_watermarks"),
        *("assignTimestampsAndWatermarks",),
    ),
    "union(…) merges streams of the same columns": (
        "concat",
        "append",
        "unionAll",
        "unionByName",
        "vstack",
    ),
    "rebalance(parallelism=…) spreads rows over subtasks": (
        *("repartition", "coalesce", "shuffle", "rescale"),
    ),
    "schema.arrow has the columns and their types": (
        *("columns", "dtypes", "printSchema", "collect_schema", "names"),
    ),
}
STREAM_HINTS = {name: hint for hint, names in _BY_HINT.items() for name in names}
"""What to use instead of a name that `Stream` does not have."""

_BEFORE = "put it before key_by: rows are sent by key only to the step behind it"
_STATELESS = (
    *(
        "filter",
        "select",
        "with_columns",
        "rename",
        "drop",
        "map",
        "map_batches",
        "flat_map",
    ),
    *("udf", "union", "rebalance", "broadcast", "watermark", "side_output", "to_debezium"),
)
KEYED_HINTS = {
    **STREAM_HINTS,
    **dict.fromkeys(_STATELESS, _BEFORE),
    "write": (
        "key_by only says where rows go: put aggregate(…), window(…) or process(…) behind it and "
        "write what that returns, or write before key_by"
    ),
    "key_by": "name all columns of the key in one key_by(…)",
}
"""The same for `KeyedStream`."""

WINDOWED_HINTS = {
    **dict.fromkeys(
        (
            *(
                *STREAM_HINTS,
                *_STATELESS,
                "write",
                "process",
                "preview",
                "key_by",
                "schema",
            ),
            "join",
        ),
        "say what to compute first, with aggregate(n=pen.count(), …) or top(n, by=…), which return "
        "a stream",
    ),
}
"""The same for `WindowedStream`."""
