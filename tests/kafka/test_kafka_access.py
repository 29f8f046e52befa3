"""Tests connections that cannot work, and those that need TLS and a password."""

from typing import Any

import pytest
from confluent_kafka import admin as kafka_admin

import penstock as pen
from penstock.errors import ExternalError, UserError
from penstock.operators.operator import SourceOperator
from penstock.testing import SourceHarness
from penstock.testing.given import shared_registry
from scripts.servers.kafka import KafkaCluster
from scripts.servers.processes import free_ports
from tests.builders.kafka_topics import TestTopic, done
from tests.builders.profile import by_profile
from tests.builders.servers import SecureKafka


def look(topic: str, servers: str, **options: Any) -> None:
    """Look for a topic as the start of a job does."""
    spec = pen.kafka(topic, servers=servers, schema={"n": int}, **options).source_spec()
    made = shared_registry().construct(spec).operator
    assert isinstance(made, SourceOperator)
    try:
        made.check_splits({})
    finally:
        made.release()


def test_a_host_that_there_is_not_is_named_at_once() -> None:
    with pytest.raises(UserError, match=r"correct servers= .*nohost\.invalid:9092"):
        look("topic", "nohost.invalid:9092")


def test_a_port_where_nobody_listens_is_tried_again() -> None:
    if not by_profile(False, False, True):
        pytest.skip("waits ten seconds, as a job does: part of `make soak`")
    (port,) = free_ports(1)
    with pytest.raises(ExternalError, match=f"at 127.0.0.1:{port}: .*Connection refused"):
        look("topic", f"127.0.0.1:{port}")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UserError, match=r"no\.such\.option"):
        look("topic", "127.0.0.1:1", options={"no.such.option": 1})


def test_a_topic_that_there_is_not_is_named_with_one_like_it(kafka: KafkaCluster) -> None:
    topic = TestTopic.create(kafka.bootstrap)
    says = f"no topic '{topic.name}s'.*did you mean '{topic.name}'"
    with pytest.raises(UserError, match=says):
        look(f"{topic.name}s", kafka.bootstrap)


def secured(kafka: SecureKafka, user: str, variable: str) -> dict[str, Any]:
    options: dict[str, Any] = dict(kafka.options(user))
    del options["bootstrap.servers"]
    return {**options, "sasl.password": pen.secret(env=variable)}


def test_a_topic_is_read_with_tls_and_a_password(
    secure_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TestTopic.create(secure_kafka.cluster.bootstrap)
    topic.produce([b'{"n": 1}'])
    monkeypatch.setenv("KAFKA_PASSWORD", secure_kafka.users["admin"])
    spec = pen.kafka(
        topic.name,
        servers=secure_kafka.cluster.secure_bootstrap,
        schema={"n": int},
        options=secured(secure_kafka, "admin", "KAFKA_PASSWORD"),
    ).source_spec()
    with SourceHarness(spec) as harness:
        harness.read()
        assert harness.rows() == [{"n": 1}]


def test_a_wrong_password_and_missing_rights_are_told_at_once(
    secure_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TestTopic.create(secure_kafka.cluster.bootstrap)
    servers = secure_kafka.cluster.secure_bootstrap
    monkeypatch.setenv("KAFKA_PASSWORD", "not the right one")
    options = secured(secure_kafka, "guest", "KAFKA_PASSWORD")
    with pytest.raises(UserError, match="did not accept the user or the password") as wrong:
        look(topic.name, servers, options=options)
    assert "not the right one" not in str(wrong.value)
    monkeypatch.setenv("KAFKA_PASSWORD", secure_kafka.users["guest"])
    with pytest.raises(UserError, match="no permission for the topic"):
        look(topic.name, servers, options=options)
    # Somebody else's certificate is not trusted.
    del options["ssl.ca.location"]
    with pytest.raises((UserError, ExternalError), match="certificate"):
        look(topic.name, servers, options=options)


def test_a_user_who_may_read_the_topic_and_nothing_else_reads_it(
    secure_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TestTopic.create(secure_kafka.cluster.bootstrap)
    topic.produce([b'{"n": 1}'])
    admin: Any = kafka_admin
    allowed = admin.AclBinding(
        admin.ResourceType.TOPIC,
        topic.name,
        admin.ResourcePatternType.LITERAL,
        "User:guest",
        "*",
        admin.AclOperation.READ,
        admin.AclPermissionType.ALLOW,
    )
    done(topic.admin.create_acls([allowed]))
    monkeypatch.setenv("KAFKA_PASSWORD", secure_kafka.users["guest"])
    spec = pen.kafka(
        topic.name,
        servers=secure_kafka.cluster.secure_bootstrap,
        schema={"n": int},
        options=secured(secure_kafka, "guest", "KAFKA_PASSWORD"),
    ).source_spec()
    with SourceHarness(spec) as harness:
        harness.read()
        assert harness.rows() == [{"n": 1}]
