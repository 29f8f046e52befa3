import pickle

import pyarrow as pa

from penstock.connectors.memory import list_sink
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.state.storage.memory import MemoryStore
from penstock.testing import OperatorHarness

STREAM = StreamSchema(pa.schema({"n": pa.int64()}))


def a_batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def a_name() -> str:
    return f"list-{new_token()}"


def test_rows_appear_at_the_commit_and_not_before() -> None:
    out = list_sink(a_name())
    sink = OperatorHarness(out, STREAM)

    sink.push([a_batch(1, 2), a_batch(3)])
    sink.barrier()
    assert out.rows() == []
    sink.commit()

    assert out.rows() == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_commit_that_is_repeated_changes_nothing() -> None:
    out = list_sink(a_name())
    sink = OperatorHarness(out, STREAM)
    sink.push(a_batch(1))
    sink.barrier()

    sink.commit(epoch=1)
    sink.commit(epoch=1)

    assert out.rows() == [{"n": 1}]


def test_rows_are_in_order_of_epoch_then_subtask_however_commits_come() -> None:
    out = list_sink(a_name())
    sink = OperatorHarness(out, STREAM, parallelism=2)
    # Of the rows of epoch 1, the second one goes to subtask 0.
    for numbers in [(2, 1), (5, 6)]:
        sink.push(a_batch(*numbers))
        sink.barrier()
    sink.commit(epoch=2)
    sink.commit(epoch=1)

    assert [row["n"] for row in out.rows()] == [1, 2, 5, 6]
    assert out.table().column("n").to_pylist() == [1, 2, 5, 6]
    assert [batch.num_rows for batch in out.batches()] == [1, 1, 1, 1]


def test_epochs_of_different_jobs_are_different() -> None:
    out = list_sink(a_name())
    for _ in range(2):
        # Harnesses in given stores are jobs of different names.
        sink = OperatorHarness(out, STREAM, store=MemoryStore())
        sink.push(a_batch(1))
        sink.barrier()
        sink.commit()

    assert out.rows() == [{"n": 1}, {"n": 1}]


def test_an_epoch_without_rows_stages_nothing() -> None:
    sink = OperatorHarness(list_sink(a_name()), STREAM, parallelism=2)

    sink.barrier()

    assert sink.commits == {}


def test_the_list_is_found_by_name_and_can_be_cleared() -> None:
    out = list_sink(a_name())
    sink = OperatorHarness(out, STREAM)
    sink.push(a_batch(1))
    sink.barrier()
    sink.commit()

    again = list_sink(str(out.config["name"]))
    assert again.rows() == [{"n": 1}]
    again.clear()
    assert out.rows() == []
    assert out.table().num_rows == 0
    sink.commit(epoch=1)
    assert out.rows() == [{"n": 1}]


def test_the_spec_pickles() -> None:
    out = list_sink(a_name())

    assert pickle.loads(pickle.dumps(out)) == out


def test_rows_with_times_after_the_year_9999_can_be_looked_at() -> None:
    far = pa.array([253_402_300_800_000_000, None]).view(pa.timestamp("us"))
    rows = pa.table({"n": [1, 2], "at": far})
    out = list_sink(a_name())
    sink = OperatorHarness(out, StreamSchema(rows.schema))
    sink.push(rows)
    sink.barrier()
    sink.commit()
    assert out.rows() == [{"n": 1, "at": 253_402_300_800_000_000}, {"n": 2, "at": None}]
    assert out.table().equals(rows)
