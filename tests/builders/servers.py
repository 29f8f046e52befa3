"""Real servers for tests: one of each per run, shared by all its processes.

The first test that needs a server starts it in the run's folder, and the others find it there.
It ends with the run, even if the run is killed. Nothing is started unless the variable asks:

| `PENSTOCK_TEST_SERVERS` | Tests that need a server |
|---|---|
| not set | are skipped |
| `1` | run where it is installed, else are skipped with the reason |
| `require` | run; a server that is missing is a failure (`make check`, `make test-servers`) |
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.core.clock import new_token
from scripts.servers.installation import PACKAGES, InstallError, installed
from scripts.servers.kafka import KafkaCluster, SecureListener
from scripts.servers.processes import ServerProcess
from scripts.servers.s3 import S3Server
from tests.builders.spark_home import RUN_FOLDER, RUN_PID

ASK = "PENSTOCK_TEST_SERVERS"
NEEDS = {
    "kafka": "kafka",
    "kafka_cluster": "kafka",
    "secure_kafka": "kafka",
    "s3_server": "s3",
}
"""Fixture → the package it needs, which is the name of the marker too."""
T = TypeVar("T", KafkaCluster, S3Server)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ask for a server by a fixture, and skip those that cannot have it."""
    for item in items:
        for fixture in NEEDS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(NEEDS[fixture])
        for name in set(NEEDS.values()):
            if item.get_closest_marker(name) and (reason := why_not(name)):
                item.add_marker(pytest.mark.skip(reason=reason))


def why_not(name: str) -> str | None:
    """Return why tests that need this server are skipped, or None if they are not."""
    asked = os.environ.get(ASK)
    if not asked:
        return f"needs the server {name}: run `make test-servers` or set {ASK}=1"
    if asked == "require" or PACKAGES[name].is_installed:
        return None
    return f"needs the server {name}, which is not installed: run `make servers`"


def _shared(
    name: str, package: str, start: Callable[[Path, int], T], find: Callable[[Path], T]
) -> T:
    """Return the run's server of this name, started by whoever comes first."""
    try:
        installed(package)
    except InstallError as error:
        pytest.fail(str(error))
    servers = Path(os.environ[RUN_FOLDER], "servers")
    servers.mkdir(exist_ok=True)
    with _locked(f"{name}.lock"):
        folder = servers / name
        if (servers / f"{name}.started").exists():
            return find(folder)
        server = start(folder, int(os.environ[RUN_PID]))
        (servers / f"{name}.started").touch()
        return server


@contextmanager
def _locked(name: str) -> Iterator[None]:
    with Path(os.environ[RUN_FOLDER], "servers", name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def end_servers(run_folder: str) -> None:
    """End every server of a run."""
    for pid_file in Path(run_folder, "servers").rglob("pid"):
        ServerProcess("a server of the run", pid_file.parent).kill()


def a_topic(name: str = "topic") -> str:
    """Return a topic's name that no other test has: tests share one broker."""
    return f"{name}-{new_token()}"


@pytest.fixture(scope="session")
def kafka() -> KafkaCluster:
    """One broker, shared: leave it running, and use topics of your own (`a_topic`)."""

    def start(folder: Path, owner: int) -> KafkaCluster:
        return KafkaCluster.start(folder, owner=owner)

    return _shared("kafka", "kafka", start, KafkaCluster.open)


@pytest.fixture
def kafka_cluster() -> Iterator[KafkaCluster]:
    """Three brokers for this test alone, all of them up; it may kill, pause and restart them."""

    def start(folder: Path, owner: int) -> KafkaCluster:
        return KafkaCluster.start(folder, brokers=3, owner=owner)

    cluster = _shared("kafka-cluster", "kafka", start, KafkaCluster.open)
    with _locked("kafka-cluster.in-use"):
        # Whatever the test before did to it. Nobody waits for that after the last one.
        cluster.start_all()
        yield cluster


@dataclass(frozen=True)
class SecureKafka:
    """A broker with a listener that wants TLS and SASL, and who may do what there."""

    cluster: KafkaCluster
    certificates: Path
    """The file that a client trusts: `ssl.ca.location`."""
    users: dict[str, str]
    """`admin` may do everything; `guest` has a password and no rights until some are given."""

    def options(self, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the options of a client of librdkafka; also PLAIN and SCRAM-SHA-256."""
        return {
            "bootstrap.servers": self.cluster.secure_bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self.users[user],
        }


USERS = {"admin": "password-of-the-admin-7351", "guest": "password-of-the-guest-9127"}
"""Words that a test can look for in whatever must not hold them."""


@pytest.fixture(scope="session")
def secure_kafka() -> SecureKafka:
    """One broker, shared, with TLS and SASL on `secure_bootstrap`, and no security elsewhere."""
    trusted = Path(os.environ[RUN_FOLDER], "servers", "certificates.pem")

    def start(folder: Path, owner: int) -> KafkaCluster:
        # Only here: every process of a run loads this file.
        import trustme
        from cryptography.hazmat.primitives import serialization as pem

        authority = trustme.CA()
        authority.cert_pem.write_to_path(trusted)
        issued = authority.issue_cert("127.0.0.1", "localhost")
        key = pem.load_pem_private_key(issued.private_key_pem.bytes(), None)
        # Java reads private keys in this form only.
        form = (pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        chain = [
            key.private_bytes(*form),
            *(cert.bytes() for cert in issued.cert_chain_pems),
        ]
        keystore = b"".join(chain).decode("ascii")
        listener = SecureListener(keystore, USERS, frozenset({"admin"}))
        return KafkaCluster.start(folder, secure=listener, owner=owner)

    cluster = _shared("secure-kafka", "kafka", start, KafkaCluster.open)
    return SecureKafka(cluster, trusted, USERS)


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    """An S3 server with one bucket, shared: write below a folder of your own."""

    def start(folder: Path, owner: int) -> S3Server:
        return S3Server.start(folder, owner=owner)

    return _shared("s3", "s3", start, S3Server.open)
