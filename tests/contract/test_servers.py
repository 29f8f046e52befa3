"""Real servers as the tests have them: they start, take a blow, and end with whoever asked."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.core.clock import new_token
from penstock.state.storage.urls import open_store
from scripts.servers import installation
from scripts.servers.fault_proxy import CuttingProxy
from scripts.servers.installation import InstallError, Package, install
from scripts.servers.kafka import KafkaCluster
from scripts.servers.keeper import lives
from scripts.servers.processes import ServerError, ServerProcess, free_ports
from scripts.servers.s3 import BUCKET, S3Server
from tests.architecture.project import ROOT
from tests.builders.servers import ASK, SecureKafka, a_topic, why_not


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def a_server(folder: Path, *command: str) -> ServerProcess:
    server = ServerProcess("sleeper", folder)
    server.start(*command)
    wait_for(lambda: server.is_running)
    return server


def test_a_server_that_is_killed_can_be_started_again_in_its_folder(tmp_path: Path) -> None:
    server = a_server(tmp_path / "a", "sleep", "600")
    first = server.pid
    with pytest.raises(ServerError, match="runs already"):
        server.start("sleep", "600")
    ServerProcess("seen by another process", tmp_path / "a").kill()
    assert not server.is_running
    server.start("sleep", "600")
    wait_for(lambda: server.is_running)
    assert server.pid != first
    server.stop()
    assert not server.is_running


def test_a_server_that_ends_while_it_starts_shows_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    server = ServerProcess("the speaker", tmp_path)
    server.start("sh", "-c", "echo no such option; exit 3")
    with pytest.raises(
        ServerError, match=r"the speaker ended while it started(.|\n)*no such"
    ):
        server.wait_ready(lambda: False)


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    server = ServerProcess("nothing", tmp_path)
    server.start("no-such-program-anywhere")
    with pytest.raises(
        ServerError, match=r"cannot be started(.|\n)*no-such-program-anywhere"
    ):
        server.wait_ready(lambda: False)


def test_a_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from scripts.servers.processes import ServerProcess\n"
        "ServerProcess('s', Path(sys.argv[1])).start('sleep', '600')\n"
        "time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    server = ServerProcess("s", tmp_path)
    wait_for(lambda: server.is_running)
    pid = server.pid
    assert pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_for(lambda: not server.is_running)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of this")
def test_a_server_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    server = a_server(tmp_path, "sleep", "600")
    pid = server.pid
    assert pid is not None
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    keeper = int(status.partition("PPid:")[2].split()[0])
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not lives(pid))


def test_an_installation_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").touch()
        if not is_online:
            raise InstallError("no network")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(installation.PACKAGES, "thing", Package("thing", "1", fill))
    is_online = False
    with pytest.raises(InstallError, match="no network"):
        install("thing")
    assert list(tmp_path.rglob("half")) == []
    with pytest.raises(
        InstallError, match=r"not installed in .*thing-1: run .* install thing`"
    ):
        installation.installed("thing")
    is_online = True
    assert (install("thing") / "half").exists()
    is_online = False
    assert (install("thing") / "half").exists(), "what is there is not installed again"
    assert installation.installed("thing") == tmp_path / "penstock-servers" / "thing-1"


@pytest.mark.parametrize(
    ("asked", "is_there", "reason"),
    [
        (None, True, "make test-servers"),
        ("", True, "make test-servers"),
        ("1", False, "not installed: run `make servers`"),
        ("1", True, None),
        ("require", False, None),
        ("require", True, None),
    ],
)
def test_tests_that_need_a_server_are_skipped_as_the_variable_says(
    asked: str | None,
    is_there: bool,
    reason: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    thing = Package("thing", "1", Path.touch)
    monkeypatch.setitem(installation.PACKAGES, "thing", thing)
    if is_there:
        thing.folder.mkdir(parents=True)
    monkeypatch.delenv(ASK, raising=False)
    if asked is not None:
        monkeypatch.setenv(ASK, asked)
    found = why_not("thing")
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("name", "program"), [("kafka", "java"), ("spark-kafka", "mvn"), ("s3", "go")]
)
def test_a_missing_program_is_named_with_what_to_install(
    name: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match=f"{program} is not on the PATH: install "):
        install(name)
    assert [path for path in tmp_path.rglob("*") if path.suffix != ".lock"] == [
        tmp_path / "penstock-servers"
    ]


def send(bootstrap: str, topic: str, *values: bytes) -> None:
    """Send values in one transaction."""
    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(60)


def received(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [
            message.value() or b""
            for message in consumer.consume(10, 0.2)
            if not message.error()
        ]
    consumer.close()
    return values


def make_topic(bootstrap: str, topic: str, copies: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, 1, copies)])
    made[topic].result()


def test_a_broker_takes_transactions_and_groups(kafka: KafkaCluster) -> None:
    topic = a_topic()
    make_topic(kafka.bootstrap, topic, 1)
    send(kafka.bootstrap, topic, b"a", b"b")
    assert received(kafka.bootstrap, topic, 2) == [b"a", b"b"]


def test_three_brokers_go_on_without_one_that_was_killed(
    kafka_cluster: KafkaCluster,
) -> None:
    topic = a_topic()
    make_topic(kafka_cluster.bootstrap, topic, 3)
    send(kafka_cluster.bootstrap, topic, b"a")
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap, "log_level": 0})

    def leader() -> int:
        return int(admin.list_topics(topic).topics[topic].partitions[0].leader)

    first = leader()
    other = first % 3 + 1
    kafka_cluster.move_leader(topic, 0, to=other)
    wait_for(lambda: leader() == other)
    kafka_cluster.kill_broker(other)
    wait_for(lambda: leader() not in {other, -1})
    send(kafka_cluster.bootstrap, topic, b"b")
    assert received(kafka_cluster.bootstrap, topic, 2) == [b"a", b"b"]


@pytest.mark.kafka
def test_a_transaction_through_a_line_that_is_cut_is_there_once(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    topic, values = a_topic(), [b"%d" % number for number in range(50)]
    with CuttingProxy(port, seed=5, mean_bytes=2_000, most=8) as line:
        through = f"127.0.0.1:{line.port}"
        advertised = {"advertised.listeners": f"PLAINTEXT://{through}"}
        with KafkaCluster.start(tmp_path, port=port, settings=advertised):
            make_topic(through, topic, 1)
            send(through, topic, *values)
            assert received(through, topic, len(values)) == values
        assert line.cuts > 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_secured_broker_lets_in_whoever_knows_the_password(
    secure_kafka: SecureKafka, mechanism: str
) -> None:
    options = secure_kafka.options("admin", mechanism)
    assert AdminClient({**options, "log_level": 0}).list_topics(timeout=60).brokers
    wrong = AdminClient({**options, "sasl.password": "another", "log_level": 0})
    with pytest.raises(confluent.KafkaException):
        wrong.list_topics(timeout=1)


def test_a_user_without_rights_may_not_read(secure_kafka: SecureKafka) -> None:
    topic = a_topic()
    make_topic(secure_kafka.cluster.bootstrap, topic, 1)
    guest = AdminClient({**secure_kafka.options("guest"), "log_level": 0})
    error = guest.list_topics(topic, timeout=60).topics[topic].error
    assert error is not None
    assert error.code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_an_s3_server_keeps_its_objects_when_it_is_killed(
    tmp_path: Path, s3_server: S3Server
) -> None:
    with S3Server.start(tmp_path / "s3") as server:
        store = open_store(f"s3://{BUCKET}/{new_token()}", **server.options())
        assert store.create("a/b", b"bytes")
        server.kill()
        server.resume()
        assert store.read("a/b") == b"bytes"
        assert not store.create("a/b", b"others")
