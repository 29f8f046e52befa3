from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.files.names import (
    LONGEST_SEGMENT,
    PartNames,
    find_name_problem,
    partition_folder,
    read_record_name,
    read_staged_name,
    record_path,
    staging_folder,
)
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo, Token
from penstock.state.storage.object_store import is_object_path

TASK = TaskInfo(JobId("shop"), OperatorId("hot-items.v2"), Subtask(7, 8))
NAMES = PartNames(TASK, Generation(3), Epoch(12), Token("0f" * 16), "parquet")


def test_a_staged_name_tells_whose_it_is() -> None:
    staged = NAMES.of_file(4, "")[0]
    assert staged == (
        f"_staging/shop/3/0000000012/{'0f' * 16}-hot-items.v2-007-004.parquet"
    )
    assert staged.startswith(f"{staging_folder(TASK.job)}/")
    assert read_staged_name(staged) == (12, "hot-items.v2")


def test_a_final_name_is_the_same_for_every_attempt() -> None:
    other = PartNames(TASK, Generation(4), Epoch(12), Token("ab" * 16), "parquet")
    final = NAMES.of_file(4, "day=1")[1]
    assert final == "day=1/part-0000000012-hot-items.v2-007-004.parquet"
    assert other.of_file(4, "day=1")[1] == final
    assert NAMES.of_file(4, "")[1] == "part-0000000012-hot-items.v2-007-004.parquet"
    assert other.of_file(4, "")[0] != NAMES.of_file(4, "")[0]


def test_other_objects_are_not_taken_for_ours() -> None:
    assert read_staged_name(NAMES.of_file(0, "")[1]) is None
    assert read_staged_name("_staging/shop/notes.txt") is None
    assert read_record_name("_committed/notes.json") is None
    assert read_record_name(NAMES.of_file(0, "")[1]) is None


@given(st.integers(1, Epoch.largest))
def test_a_list_is_found_by_its_name(epoch: int) -> None:
    path = record_path(Epoch(epoch), TASK.operator)
    assert read_record_name(path) == (epoch, TASK.operator)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_value_makes_a_folder_that_tells_it(value: str) -> None:
    folder = partition_folder(["day"], (value,))
    assert is_object_path(folder[:200])
    assert "/" not in folder
    assert unquote(folder.removeprefix("day=")) == value


def name_problem(**values: str | None) -> str | None:
    columns, partition = list(values), tuple(values.values())
    _, path = NAMES.of_file(0, partition_folder(columns, partition))
    return find_name_problem(columns, partition, path)


def test_a_folder_may_have_as_many_bytes_as_a_disk_takes() -> None:
    fits = "x" * (LONGEST_SEGMENT - len("day="))
    assert name_problem(day=fits, shop=None) is None
    problem = name_problem(day="mon", shop=f"{fits}x")
    assert problem is not None
    assert "column 'shop' makes a folder name of 257 bytes" in problem
    assert len(problem) < 200


def test_bytes_count_not_characters_and_as_they_are_written() -> None:
    assert name_problem(day="ü" * 126) is not None
    assert name_problem(day="/" * 84) is not None
    assert name_problem(day="/" * 83) is None


def test_a_path_is_no_longer_than_every_store_takes() -> None:
    problem = name_problem(a="x" * 250, b="x" * 250, c="x" * 250, d="x" * 250)
    assert problem is not None
    assert "'a' = 'xxx" in problem
    assert "1024 is the most" in problem
