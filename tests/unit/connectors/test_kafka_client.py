"""Tests what errors of Kafka's client library mean to a user."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.errors import ExternalError, PenstockError, UserError


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
