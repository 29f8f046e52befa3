"""Secrets in configs, graphs and pickles: the reference travels, the value does not."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import penstock as pen
from penstock.core.secrets import Secret
from penstock.core.settings import load_settings
from penstock.errors import ErrorCode, SettingsError, UserError
from penstock.graph.codec import decode_graph, encode_graph
from penstock.operators.secret_options import (
    find_secrets,
    plain_options,
    resolve_options,
    usable_options,
)
from penstock.state.storage.obstore import ObstoreStore

VALUE = "c4n4ry-of-options"


def _ways(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Secret]:
    monkeypatch.setenv("SECRET_BY_ENV", VALUE)
    (folder / "password").write_text(f"{VALUE}\n")
    return {
        "env": pen.secret(env="SECRET_BY_ENV"),
        "file": pen.secret(file=folder / "password"),
        "function": pen.secret(lambda: os.environ["SECRET_BY_ENV"]),
    }


@pytest.mark.parametrize("way", ["env", "file", "function"])
def test_every_way_gives_the_value_where_it_is_resolved(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = _ways(tmp_path, monkeypatch)[way]
    plain = plain_options({"sasl.password": named, "client.id": "a"})
    assert resolve_options(plain) == {"sasl.password": VALUE, "client.id": "a"}
    assert usable_options(plain)["sasl.password"] == named
    assert VALUE not in repr(plain)
    assert VALUE not in repr(named)


@pytest.mark.parametrize("way", ["env", "file", "function"])
def test_graphs_and_pickles_hold_the_reference(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = _ways(tmp_path, monkeypatch)[way]
    options = {"access_key_id": "a", "secret_access_key": named, "region": "x"}
    p = pen.Pipeline("p")
    read = p.read(
        "read", pen.files("s3://b/*.parquet", schema={"n": int}, store_options=options)
    )
    read.write("out", pen.files("s3://b/out", store_options=options))
    graph = p.graph()
    data = encode_graph(graph)
    assert VALUE.encode() not in data
    for node in decode_graph(data).nodes:
        assert [secret.read() for secret in find_secrets(node.spec.config)] == [VALUE]
    store = ObstoreStore("s3://b/c", options)
    assert VALUE.encode() not in cloudpickle.dumps(store)
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert VALUE not in p.explain()


def test_a_function_is_called_in_another_process(tmp_path: Path) -> None:
    named = pen.secret(lambda: "text of process " + "".join(["o", "k"]))
    (tmp_path / "secret").write_bytes(cloudpickle.dumps(named))
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).read())"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "secret")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "text of process ok\n"


def test_a_start_names_the_secrets_that_the_driver_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    options = {
        "secret_access_key": pen.secret(env="NOT_SET_ANYWHERE"),
        "session_token": pen.secret(file=tmp_path / "none"),
    }
    p = pen.Pipeline("p")
    p.read("read", pen.list_source([{"n": 1}])).write(
        "out", pen.files("s3://b/out", store_options=options)
    )
    problems = p.check("memory:").problems
    assert [p.code for p in problems] == [ErrorCode.INVALID_CONFIG] * 2
    assert "'out'" in problems[0].message
    assert "NOT_SET_ANYWHERE" in problems[0].message
    assert "/none" in problems[1].message
    with pytest.raises(UserError, match="NOT_SET_ANYWHERE"):
        p.run_in_process("memory:")


def test_a_store_of_checkpoints_names_the_missing_variable() -> None:
    p = pen.Pipeline("p")
    p.read("read", pen.list_source([{"n": 1}])).write("out", pen.blackhole())
    with pytest.raises(UserError, match="NOT_SET_ANYWHERE"):
        p.run_in_process(
            "s3://b/c",
            store_options={"secret_access_key": pen.secret(env="NOT_SET_ANYWHERE")},
        )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"env": "A", "file": "/a"},
        {"function": VALUE},
        {"env": ""},
        {"env": "A=B"},
        {"file": ""},
    ],
)
def test_what_names_no_secret_is_refused_and_not_shown(given: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"pen\.secret\(env=") as failure:
        pen.secret(**given)  # type: ignore[arg-type]
    assert VALUE not in str(failure.value)


def test_variables_of_settings_are_no_secrets() -> None:
    with pytest.raises(UserError, match="are settings"):
        pen.secret(env="PENSTOCK_PASSWORD")
    with pytest.raises(SettingsError, match="PENSTOCK_KAFKA_PASSWORD") as failure:
        load_settings({"PENSTOCK_KAFKA_PASSWORD": VALUE})
    assert VALUE not in str(failure.value)


def test_a_relative_file_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pen.secret(file="x").file == str(tmp_path / "x")
