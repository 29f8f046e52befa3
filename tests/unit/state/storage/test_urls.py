"""Which URLs open which store, and what a wrong one is told."""

import doctest
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import new_token
from penstock.errors import ErrorCode, SettingsError, UserError
from penstock.state.storage import urls
from penstock.state.storage.local_disk import LocalStore
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.obstore import ObstoreStore
from penstock.state.storage.urls import open_store


def put_and_find(store: ObjectStore, file: Path) -> bool:
    store.put("x", b"1")
    return file.read_bytes() == b"1"


def test_a_file_url_and_a_path_open_the_folder_and_make_it(tmp_path: Path) -> None:
    for index, url in enumerate(
        [
            f"file://{tmp_path}/a/0",
            f"file:{tmp_path}/a/1",
            f"file://localhost{tmp_path}/a/2",
            f"FILE://{tmp_path}/a/3",
            f"{tmp_path}/a/4",
            f"{tmp_path}/a/5/",
        ]
    ):
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert put_and_find(store, tmp_path / "a" / str(index) / "x")
        assert store.url == f"file://{tmp_path}/a/{index}"


def test_a_relative_path_means_the_working_folder_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stores = {
        name: open_store(name) for name in ("plain", "./dotted", "a/../b", "file:url")
    }
    monkeypatch.chdir("/")
    for name, folder in zip(stores, ("plain", "dotted", "b", "url"), strict=True):
        assert put_and_find(stores[name], tmp_path / folder / "x")


def test_a_tilde_is_the_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert put_and_find(open_store("~/state"), tmp_path / "state" / "x")


def test_the_home_of_a_user_that_does_not_exist_is_refused_with_an_explanation() -> None:
    for use in (open_store, urls.absolute_url):
        with pytest.raises(UserError, match="this machine does not know") as caught:
            use("~no-such-user/x")
        assert caught.value.code is ErrorCode.INVALID_URL


def test_a_path_object_opens_its_folder_even_if_it_looks_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert put_and_find(open_store(tmp_path / "a b%20"), tmp_path / "a b%20" / "x")
    assert put_and_find(open_store(Path("s3:x")), tmp_path / "s3:x" / "x")
    given = MemoryStore()
    assert urls.to_store(given) is given
    assert urls.to_store(tmp_path / "b").url == f"file://{tmp_path}/b"
    anything: list[Any] = [None, 5, b"bytes"]
    for wrong in anything:
        for use in (urls.to_store, urls.to_url, open_store):
            with pytest.raises(UserError, match="names no store"):
                use(wrong)


def test_escapes_count_in_a_url_and_not_in_a_path(tmp_path: Path) -> None:
    assert put_and_find(open_store(f"file://{tmp_path}/a%20b"), tmp_path / "a b" / "x")
    assert put_and_find(open_store(f"{tmp_path}/c%20d"), tmp_path / "c%20d" / "x")
    odd = open_store(str(tmp_path / "ä b%"))
    assert put_and_find(open_store(odd.url), tmp_path / "ä b%" / "x")


def test_a_named_memory_store_is_shared_and_a_nameless_one_is_private() -> None:
    name = new_token()
    shared = open_store(f"memory:{name}")
    shared.put("a", b"x")
    assert open_store(f"memory://{name}/") is shared
    assert open_store(f"memory:{new_token()}").read("a") is None
    private = open_store("memory:")
    private.put("a", b"x")
    assert isinstance(private, MemoryStore)
    assert open_store("memory:").read("a") is None


def test_buckets_are_opened_without_being_asked() -> None:
    cases: list[tuple[str, dict[str, object], str | None]] = [
        ("s3://bucket/a/b", {"region": "eu-west-1"}, "s3://bucket/a/b"),
        ("s3://bucket", {"region": "eu-west-1", "path_style": True}, "s3://bucket"),
        ("S3://bucket/a/", {"max_retries": 2}, "s3://bucket/a"),
        ("gs://bucket/a", {"timeout": "3s", "retry_timeout": timedelta(seconds=1)}, None),
        ("az://container/a", {"account_name": "account"}, "az://container/a"),
    ]
    for url, options, expected in cases:
        store = open_store(url, **options)
        assert isinstance(store, ObstoreStore)
        assert store.url == (expected or url)
        again = pickle.loads(pickle.dumps(store))
        assert again.url == store.url
        assert again._options == options


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://host/x",
        "ftp:x",
        "hdfs://host/x",
        "s3:bucket",
        "s3:///a",
        "s3://",
        "s3://bucket/a?versionId=1",
        "s3://bucket#x",
        "gs://under_score@/a",
        "az://",
        "file://elsewhere/a",
        "file:",
        "file:///",
        "file:///a?b",
        "memory:a/b",
        "a\0b",
    ],
)
def test_a_url_that_names_no_store_is_refused_and_told_what_is_allowed(url: str) -> None:
    with pytest.raises(UserError, match=r"use |of the form ") as caught:
        open_store(url)
    assert caught.value.code is ErrorCode.INVALID_URL


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@bucket/a", "https://key:secret@host/a", "file://key:secret@host/a"],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(url)
    assert "secret" not in caught.value.message
    assert "secret" not in str(caught.value.context)


def test_a_prefix_that_leaves_the_bucket_is_refused() -> None:
    with pytest.raises(UserError, match="not a valid object path"):
        open_store("s3://bucket/a/../../b")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory:", {"region": "x"}),
        ("memory:x", {"durable": True}),
        ("gs://bucket", {"path_style": True}),
        ("s3://bucket", {"regoin": "x"}),
        ("s3://bucket", {"timeout": "soon"}),
        ("s3://bucket", {"max_retries": "many"}),
        ("az://container", {"account_name": "a", "durable": False}),
    ],
)
def test_an_option_nobody_knows_or_understands_is_refused(
    url: str, options: dict[str, object]
) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url, **options)
    assert caught.value.code is ErrorCode.INVALID_SETTING
    assert next(iter(options)) in caught.value.message


def test_a_folder_refuses_the_options_of_a_bucket(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="region"):
        open_store(str(tmp_path / "new"), region="x")
    assert not (tmp_path / "new").exists()


def test_the_secret_of_an_option_appears_in_no_error() -> None:
    options = {"secret_access_key": "do-not-tell", "regoin": "x"}
    with pytest.raises(SettingsError) as caught:
        open_store("s3://bucket", **options)
    assert "do-not-tell" not in caught.value.message


def test_a_store_reaches_another_process(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "shared"))
    store.put("question", b"6 x 7")
    (tmp_path / "pickled").write_bytes(pickle.dumps(store))
    script = (
        "import pickle, sys, pathlib; "
        "store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()); "
        "assert store.read('question') == b'6 x 7'; store.put('answer', b'42')"
    )
    source = str(Path(urls.__file__).parents[3])
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {source!r}); {script}",
    ]
    subprocess.run([*command, str(tmp_path / "pickled")], check=True)
    assert store.read("answer") == b"42"


def test_the_example_in_the_documentation_works() -> None:
    result = doctest.testmod(urls)
    assert result.attempted > 0
    assert result.failed == 0
