"""Tests what errors of Kafka's client library mean to a user, and what its absence does."""

import subprocess
import sys

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

import penstock as pen
from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.errors import ExternalError, PenstockError, UserError
from penstock.testing import OperatorHarness


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (KafkaError._TIMED_OUT, ExternalError, "rows were not written"),
        (KafkaError._TRANSPORT, ExternalError, "rows were not written"),
        (KafkaError.NOT_LEADER_FOR_PARTITION, ExternalError, "rows were not written"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UserError, "create it"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, UserError, "no permission for the topic"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, UserError, "the user or the password"),
    ],
)
def test_error_of_the_library_says_what_to_do(
    code: int, kind: type[PenstockError], says: str
) -> None:
    error = to_error(KafkaException(KafkaError(code)), "rows were not written")
    assert type(error) is kind
    assert says in str(error)


def test_unknown_option_of_the_library_is_named() -> None:
    with pytest.raises(UserError, match=r"no\.such\.option"):
        KafkaClients("localhost:1", {"no.such.option": 1}).admin()


class _Told:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name


def test_a_refusal_is_forgotten_when_a_broker_answers() -> None:
    reports = Reports()
    reports(_Told("_AUTHENTICATION"))
    assert reports.find_refusal() is not None
    reports.note_answer()
    assert reports.find_refusal() is None


@pytest.fixture
def without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("confluent_kafka", "confluent_kafka.admin"):
        monkeypatch.setitem(sys.modules, name, None)


NAMES_THE_EXTRA = r"pip install 'penstock\[kafka\]'"


@pytest.mark.usefixtures("without_the_library")
def test_without_the_client_library_a_start_names_the_extra() -> None:
    topic = pen.kafka("topic", servers="localhost:1", format="text")
    reads, writes = pen.Pipeline("reads"), pen.Pipeline("writes")
    reads.read("in", topic).write("out", pen.blackhole())
    writes.read("in", pen.list_source([{"text": "a"}])).write("out", topic)
    for pipeline in (reads, writes):
        with pytest.raises(UserError, match=NAMES_THE_EXTRA):
            pipeline.run_in_process("memory:")


@pytest.mark.usefixtures("without_the_library")
@pytest.mark.parametrize("create_topic", [False, True])
def test_without_the_client_library_a_task_names_the_extra(*, create_topic: bool) -> None:
    # It may be on a machine that has less than the driver's.
    sink = pen.kafka("topic", servers="localhost:1", create_topic=create_topic).sink_spec()
    with OperatorHarness(sink, pa.schema([("n", pa.int64())])) as harness:
        harness.push({"n": [1]})
        with pytest.raises(UserError, match=NAMES_THE_EXTRA):
            harness.barrier()


@pytest.mark.usefixtures("without_the_library")
def test_without_the_client_library_every_client_names_the_extra() -> None:
    clients = KafkaClients("localhost:1")
    for make in (clients.consumer, clients.producer, clients.admin):
        with pytest.raises(UserError, match=NAMES_THE_EXTRA):
            make()


def test_the_client_library_is_loaded_only_when_a_job_runs() -> None:
    program = (
        "import penstock as pen, penstock.catalog, sys\n"
        "p = pen.Pipeline('p')\n"
        "topic = pen.kafka('in', servers='localhost:1', schema={'n': int})\n"
        "p.read('r', topic).write('o', pen.kafka('out', servers='localhost:1', key='n'))\n"
        "p.explain()\n"
        "assert 'confluent_kafka' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
