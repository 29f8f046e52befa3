"""Credentials of sources, sinks and stores are shown nowhere: not drawn, printed, raised or logged."""

import logging
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PenstockError, SettingsError, StorageError, hide_secrets
from penstock.graph.logical import OperatorSpec
from penstock.graph.render import render, to_json, to_mermaid
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator, DisplayableOperator
from penstock.state.storage.urls import open_store

SECRET, SLASHED = "hunter2", "aws/se/cret+"
SCHEMA = pa.schema([("n", pa.int64())])
OPTIONS = {
    "region": "eu-west-1",
    "secret_access_key": SECRET,
    "endpoint": f"https://u:{SECRET}@h",
}
PLACES = [
    f"s3://key:{SECRET}@bucket/out",
    f"s3://key:{SLASHED}@bucket/out",
    f"az://container/out?sv=2024-01-01&sig={SECRET}",
    f"gs://bucket/out?X-Goog-Signature={SECRET}&x=1",
    f"https://user:{SECRET}@host/out",
]


def a_pipeline(place: str) -> pen.Pipeline:
    pipeline = pen.Pipeline("secretive")
    source = pen.files(f"{place}/*.csv", format="csv", schema=SCHEMA, store_options=OPTIONS)
    rows = pipeline.read("rows", source)
    rows.write("out", pen.files(place, format="parquet", store_options=OPTIONS))
    return pipeline


def is_shown(text: str) -> bool:
    return SECRET in text or SLASHED in text or "se/cret" in text


@pytest.mark.parametrize("place", PLACES)
def test_no_drawing_and_no_repr_of_a_graph_shows_credentials(place: str) -> None:
    pipeline = a_pipeline(place)
    graph = pipeline.graph()
    shown = [
        *(pipeline.explain(form) for form in ("text", "mermaid", "json")),
        # A drawing without what the operators say of themselves, as of a graph with mistakes.
        to_json(render(graph)),
        to_mermaid(render(graph)),
        repr(graph),
        repr(pipeline),
        repr(pen.files(place, store_options=OPTIONS)),
        str(pen.files(place, format="parquet", store_options=OPTIONS).sink_spec()),
    ]
    for operator in graph.nodes:
        built = pipeline.registry.construct(operator.spec)
        shown += [
            repr(built),
            str(built.display()),
            repr(getattr(built.operator, "config", "")),
        ]
    assert [text for text in shown if is_shown(text)] == []
    assert "secret_access_key" in repr(graph), "which options there are is no secret"
    assert "out" in pipeline.explain()


@pytest.mark.parametrize("place", PLACES)
def test_no_error_status_or_log_of_a_job_shows_credentials(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    with caplog.at_level(logging.DEBUG), pytest.raises(PenstockError) as caught:
        a_pipeline(place).run_in_process("memory:", on_status=seen.append)
    text = "".join(traceback.format_exception(caught.value))
    assert not is_shown(text)
    assert not is_shown(repr(caught.value.context))
    assert not is_shown("".join(map(repr, seen)))
    assert not is_shown(caplog.text)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("read", [pen.read_committed, pen.committed_files])
def test_readers_of_output_do_not_repeat_credentials(
    place: str, read: Callable[..., Any]
) -> None:
    with pytest.raises(PenstockError) as caught:
        read(place, store_options=OPTIONS)
    assert not is_shown("".join(traceback.format_exception(caught.value)))


def test_an_endpoint_with_a_password_is_hidden_in_the_cause_of_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://user:{SECRET}@127.0.0.1:{unused.getsockname()[1]}/?sig={SECRET}"
        options = {"endpoint": endpoint, "allow_http": True, "max_retries": 0}
        store = open_store(
            "s3://bucket", access_key_id="key", secret_access_key=SECRET, **options
        )
        calls: list[Callable[[], Any]] = [
            lambda: store.read("a"),
            lambda: store.put("a", b""),
            lambda: store.create("a", b""),
            lambda: store.size("a"),
            lambda: list(store.list("")),
            lambda: store.delete("a"),
        ]
        for call in calls:
            with pytest.raises(StorageError) as caught:
                call()
            text = "".join(traceback.format_exception(caught.value))
            assert caught.value.__cause__ is not None
            assert "127.0.0.1" in text
            assert not is_shown(text)


def write_to_table(options: dict[str, Any]) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"n": 1}]))
    rows.write("out", pen.delta("s3://bucket/t", store_options=options))
    pipeline.run_in_process("memory:", restarts=0)


@pytest.mark.parametrize(
    "use",
    [
        lambda options: pen.delta("s3://bucket/t", store_options=options).source_spec(),
        lambda options: pen.lookup_delta("s3://bucket/t", store_options=options).schema,
        write_to_table,
    ],
    ids=["read", "look up", "write"],
)
def test_a_table_at_an_endpoint_with_a_password_hides_it_in_causes_too(
    use: Callable[[dict[str, Any]], Any],
) -> None:
    options = {**OPTIONS, "access_key_id": "key", "allow_http": True, "max_retries": 0}
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://user:{SECRET}@127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PenstockError) as caught:
            use({**options, "endpoint": endpoint})
    text = "".join(traceback.format_exception(caught.value))
    assert "127.0.0.1" in text
    assert not is_shown(text)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": f"user:{SECRET}@no url"},
        {"endpoint": f"https://user:{SECRET}@host:99999999"},
        {"aws_endpoint": f"ftp://{SECRET}"},
        {"proxy_url": f"no {SECRET}"},
        {"secret_access_key": SECRET, "timeout": "soon"},
        {"skip_signature": SECRET},
        {"AWS_SKIP_SIGNATURE": SECRET},
    ],
)
def test_an_option_that_is_refused_is_named_without_its_value(
    options: dict[str, str],
) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store("s3://bucket", **options)
    assert not is_shown("".join(traceback.format_exception(caught.value)))
    assert next(iter(options)) in caught.value.message


def test_all_errors_and_displays_hide_what_urls_hold() -> None:
    url = PLACES[0]
    error = pickle.loads(
        pickle.dumps(PenstockError(f"no answer from {url!r}", url=url, all=(url, 5)))
    )
    assert str(error) == error.message == "no answer from 's3://***@bucket/out'"
    assert error.context == {
        "url": "s3://***@bucket/out",
        "all": ("s3://***@bucket/out", 5),
    }
    assert not is_shown(str(DisplayableOperator("sink", {"url": url})))
    spec = OperatorSpec(
        "udf", {"nested": {"store_options": {"token": SECRET}, "url": (url,)}}
    )
    assert not is_shown(repr(spec))


CONNECTIONS = [
    f"postgresql://user:{SECRET}@host/db",
    f"Server=host;Uid=user;Pwd={SECRET};",
    f"host=host password={SECRET} user=x",
    f"PGPASSWORD='{SECRET}' psql",
    f"AccountName=a;AccountKey={SLASHED}==;EndpointSuffix=x",
    f"https://host/x?access_token={SECRET}&a=b",
    f"Authorization: Bearer {SECRET}",
    f"{{'db_password': '{SECRET}', 'host': 'host'}}",
]


class Connected(ArrowOperator):
    """A sink of a user's own that names what it connects to wherever it can."""

    def __init__(self, place: str, error: type[Exception]) -> None:
        self._place, self._error = place, error

    def name(self) -> str:
        return "connected"

    def display(self) -> DisplayableOperator:
        return DisplayableOperator("connected", {"to": self._place, "db_password": SECRET})

    def output_schema(self, inputs: Sequence[pen.StreamSchema]) -> None:
        return None

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        raise self._error(f"no answer from {self._place}")


@pytest.mark.parametrize("place", CONNECTIONS)
@pytest.mark.parametrize("error", [ConnectionError, pen.ExternalError])
def test_connections_of_users_are_hidden_in_errors_notes_status_and_drawings(
    place: str, error: type[Exception]
) -> None:
    pipeline, seen = pen.Pipeline("p"), list[Any]()
    rows = pipeline.read("rows", pen.list_source([{"n": 1}]))
    rows.write("out", Connected(place, error))
    with pytest.raises(PenstockError) as caught:
        pipeline.run_in_process("memory:", on_status=seen.append, restarts=0)
    failure = caught.value
    assert "no answer from" in failure.message
    # What user code itself raised is chained as it is, and is not ours to change.
    shown = [failure.message, *failure.__notes__, *map(repr, seen), *map(str, seen)]
    assert [text for text in shown if is_shown(text)] == []
    assert not is_shown(pipeline.explain())
    assert not is_shown(repr(pickle.loads(pickle.dumps(failure)).__notes__))


def test_facts_of_an_error_are_hidden_at_any_depth_and_by_name() -> None:
    place, plain = CONNECTIONS[2], dict[str, Any](password=SECRET, host="host", port=5)
    error = PenstockError("no answer", all=[place, {"x": (place,)}], **plain)
    assert not is_shown(repr(error.context))
    assert error.context["host"] == "host"
    assert error.context["port"] == 5
    assert not is_shown(repr(OperatorSpec("mine", {"nested": plain, "api_key": SECRET})))


@pytest.mark.parametrize(
    "text",
    [
        "token == 5 and token==None, a basic password: secret",
        "sum(token) where key=5, tokens=5, key_columns=('a',)",
        "s3://lake/day-?.parquet and gs://lake/a/**/[!x]?/b",
        "file:///data/me@work/x?y=z",
        "mail me@example.com: is a=b? or a?b=c",
        "s3://bucket/day=2026-01-01/part-0.parquet",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert hide_secrets(text) == text
