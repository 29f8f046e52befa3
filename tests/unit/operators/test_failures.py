import pickle

import pyarrow as pa
import pytest

from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, ExternalError, StorageError, UserCodeError, UserError
from penstock.operators.context import OperatorContext
from penstock.operators.user_functions import describe_failure
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import an_attempt
from tests.builders.scripted import PLAIN, rows

TASK = TaskInfo(JobId("job"), OperatorId("op"), Subtask(1, 4))
FACTS = {"operator": "op", "subtask": 1, "epoch": 1, "hook": "process_batch"}


def a_context() -> OperatorContext:
    tables = TableManager.load(an_attempt(MemoryStore(), TASK), (), {})
    return OperatorContext(TASK, inputs=(PLAIN,), outputs={"main": PLAIN}, tables=tables)


def raised(error: Exception) -> Exception:
    """Return the error as it is after it was raised and caught."""
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_exception_of_user_code_tells_where_on_what_and_how_it_was_raised() -> None:
    error = raised(ZeroDivisionError("division by zero"))
    failure = describe_failure(error, a_context(), "process_batch", rows(*range(7)))
    assert isinstance(failure, UserCodeError)
    assert failure.message == (
        "operator 'op' raised ZeroDivisionError in process_batch (subtask 1 of 4, epoch 1): "
        "division by zero"
    )
    assert failure.context == FACTS
    sample, trace = failure.__notes__
    assert sample.startswith("The batch it was given begins with:\n{'user': 'u', 'n': 0, ")
    assert sample.endswith("… and 2 more rows")
    assert "in raised" in trace
    assert trace.endswith("ZeroDivisionError: division by zero")
    assert failure.__cause__ is error


def test_all_of_it_survives_pickling() -> None:
    failure = describe_failure(raised(KeyError("x")), a_context(), "process_batch", rows(1))
    again = pickle.loads(pickle.dumps(failure))
    assert (again.message, again.code, again.context) == (
        failure.message,
        failure.code,
        failure.context,
    )
    assert again.__notes__ == failure.__notes__


@pytest.mark.parametrize("kind", [ExternalError, UserError, StorageError])
def test_errors_of_our_own_keep_their_class_and_learn_whose_hook_it_was(
    kind: type[UserError],
) -> None:
    error = kind("down", code=ErrorCode.EXTERNAL_FAILED, epoch=7)
    failure = describe_failure(error, a_context(), "process_batch", rows(1))
    assert failure is error
    assert failure.context == FACTS | {"epoch": 7}
    whose, sample = failure.__notes__
    assert whose == "Raised by operator 'op' in process_batch (subtask 1 of 4, epoch 1)"
    assert "'n': 1" in sample
    describe_failure(error, a_context(), "process_batch", rows(1))
    assert failure.__notes__ == [whose, sample]


def test_a_long_traceback_is_cut_to_its_end() -> None:
    def dig(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        dig(depth - 1)

    with pytest.raises(ValueError, match="bottom") as caught:
        dig(100)
    failure = describe_failure(caught.value, a_context(), "on_start")
    assert failure.__notes__[-1].count("in dig") <= 12


def test_without_a_batch_there_is_no_sample() -> None:
    failure = describe_failure(raised(ValueError("x")), a_context(), "on_start")
    assert len(failure.__notes__) == 1


def test_a_batch_without_columns_can_be_shown() -> None:
    empty = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    failure = describe_failure(raised(ValueError("x")), a_context(), "on_start", empty)
    assert len(failure.__notes__) == 2
