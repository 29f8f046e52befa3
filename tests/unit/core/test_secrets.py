"""A secret is named by its place, and its value is read there, and never shown."""

import pickle
from pathlib import Path

import pytest

from penstock.core.secrets import (
    Secret,
    is_secret_name,
    refuse_literal_secrets,
    resolve_secrets,
)
from penstock.errors import ErrorCode, ExternalError, UserError

VALUE = "c4n4ry-of-secrets"


def test_a_variable_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Secret(env="KAFKA_PASSWORD")
    monkeypatch.setenv("KAFKA_PASSWORD", "first")
    assert resolve_secrets({"a": named, "b": 1}) == {"a": "first", "b": 1}
    monkeypatch.setenv("KAFKA_PASSWORD", "second")
    assert named.read() == "second"


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    with pytest.raises(
        UserError, match=r"'KAFKA_PASSWORD' is not set.*executorEnv"
    ) as failure:
        Secret(env="KAFKA_PASSWORD").read()
    assert failure.value.context["variable"] == "KAFKA_PASSWORD"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_is_read_without_the_end_of_its_line(tmp_path: Path, end: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(f" {VALUE} ".encode() + end.encode())
    assert Secret(file=str(path)).read() == f" {VALUE} "


def test_files_that_give_no_secret_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere' cannot be read \(No such file"):
        Secret(file=str(tmp_path / "nowhere")).read()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="empty' of a secret is empty"):
        Secret(file=str(tmp_path / "empty")).read()
    (tmp_path / "bytes").write_bytes(b"\xff" + VALUE.encode())
    with pytest.raises(UserError, match="not UTF-8") as failure:
        Secret(file=str(tmp_path / "bytes")).read()
    # A cause or context would show the bytes in a traceback.
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__


def test_what_a_function_raises_is_told_without_its_message() -> None:
    def vault() -> str:
        raise RuntimeError(f"bad answer {VALUE}")

    with pytest.raises(
        ExternalError, match=r"'vault' .* RuntimeError in test_secrets"
    ) as it:
        Secret(function=vault).read()
    assert VALUE not in str(it.value)
    assert it.value.__suppress_context__


@pytest.mark.parametrize("returned", [None, b"bytes", "", 7])
def test_a_function_must_return_text(returned: object) -> None:
    with pytest.raises(UserError, match="must return the secret as text"):
        Secret(function=lambda: returned).read()


def test_a_secret_shows_its_place_alone() -> None:
    assert repr(Secret(env="A")) == "secret(env='A')"
    assert repr(Secret(file="/run/a")) == "secret(file='/run/a')"
    assert repr(Secret(function=str)) == "secret(str)"
    assert pickle.loads(pickle.dumps(Secret(env="A"))) == Secret(env="A")


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.config",
        "secret_access_key",
        "session_token",
        "AWS_SECRET_ACCESS_KEY",
        "account_key",
    ],
)
def test_literal_secrets_are_refused_with_the_three_ways(name: str) -> None:
    with pytest.raises(UserError, match="written out") as failure:
        refuse_literal_secrets("Kafka", {"client.id": "a", name: VALUE})
    assert failure.value.code == ErrorCode.INVALID_CONFIG
    for way in ("env=", "file=", "function"):
        assert way in str(failure.value)
    assert name in str(failure.value)
    assert VALUE not in str(failure.value)
    refuse_literal_secrets("Kafka", {name: Secret(env="A")})


@pytest.mark.parametrize("value", [123456, ["123456"], {"is": "123456"}, b"123456"])
def test_secrets_that_are_no_text_are_refused_as_well(value: object) -> None:
    with pytest.raises(UserError, match="written out") as failure:
        refuse_literal_secrets("Kafka", {"sasl.password": value})
    assert "123456" not in str(failure.value)


@pytest.mark.parametrize("value", [None, "", False])
def test_options_without_a_value_are_no_secrets(value: object) -> None:
    refuse_literal_secrets("Kafka", {"sasl.password": value})


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username",
        "sasl.mechanism",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.key.location",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "enable.ssl.certificate.verification",
        "partition.assignment.strategy",
    ],
)
def test_other_options_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)
