"""Kafka on loopback: a cluster of one or three brokers that can be killed and started again.

Each broker is a controller too (KRaft), so any one of three may die. All settings are files in
the cluster's folder; `KafkaCluster.open` gives another process the same cluster.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from scripts.servers.installation import installed
from scripts.servers.processes import LOOPBACK, ServerError, ServerProcess, free_ports

_JVM = (
    *("-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:-UsePerfData", "-Dorg.apache.logging.log4j.level=INFO"),
)
_ARCHIVE = "classes.jsa"
_STARTED = b"Kafka Server started"
_QUICK = {
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    # What takes minutes by default happens while a test waits.
    "log.initial.task.delay.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 200,
    "log.cleaner.backoff.ms": 200,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 5_000,
    "replica.lag.time.max.ms": 5_000,
    "replica.fetch.backoff.ms": 100,
    "auto.leader.rebalance.enable": "false",
}


@dataclass(frozen=True)
class SecureListener:
    """A second listener with TLS and SASL: by SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN."""

    keystore: str
    """A private key (PKCS #8) and the certificates of 127.0.0.1, in PEM."""
    users: Mapping[str, str]
    """Names and passwords."""
    super_users: frozenset[str] = field(default=frozenset())
    """Those who may do everything. The others may do what access lists allow: nothing at first.
    Whoever comes by the plain listener may do everything."""

    def settings(self, folder: Path) -> dict[str, object]:
        """Write the keystore, and return the settings of a broker that uses it."""
        store = folder / "keystore.pem"
        store.write_text(self.keystore, encoding="ascii")
        store.chmod(0o600)
        users = " ".join(f'user_{name}="{word}"' for name, word in self.users.items())
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
        prefix = "listener.name.secure"
        everything = ["ANONYMOUS", *sorted(self.super_users)]
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"{prefix}.plain.sasl.jaas.config": f"{plain} required {users};",
            f"{prefix}.scram-sha-256.sasl.jaas.config": f"{scram} required;",
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{scram} required;",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{name}" for name in everything),
        }

    def format_arguments(self) -> list[str]:
        """Return what the formatter is told, so that SCRAM knows the users from the start."""
        return [
            argument
            for name, word in self.users.items()
            for size in (256, 512)
            for argument in (
                "--add-scram",
                f"SCRAM-SHA-{size}=[name={name},password={word}]",
            )
        ]


@dataclass(frozen=True)
class KafkaCluster:
    """Brokers in a folder, by numbers from 1. A context manager, so that no process stays."""

    folder: Path
    ports: tuple[int, ...]
    secure_ports: tuple[int, ...]
    owner: int

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        brokers: int = 1,
        port: int | None = None,
        secure: SecureListener | None = None,
        settings: Mapping[str, object] | None = None,
        owner: int | None = None,
    ) -> Self:
        """Make a cluster in an empty folder and start it; returns when every broker is ready.

        `port` is that of the first broker. It ends with the owner, this process by default.
        """
        drawn = free_ports(3 * brokers)
        ports = drawn[:brokers]
        if port is not None:
            ports[0] = port
        secure_ports = drawn[brokers : 2 * brokers] if secure else []
        folder.mkdir(parents=True, exist_ok=True)
        cluster = cls(
            folder.resolve(), tuple(ports), tuple(secure_ports), owner or os.getpid()
        )
        cluster._format(drawn[2 * brokers :], secure, settings or {})
        described = {"ports": ports, "secure_ports": secure_ports, "owner": cluster.owner}
        try:
            for number in cluster.brokers:
                cluster._launch(number)
            for number in cluster.brokers:
                cluster._wait_started(number)
        except BaseException:
            cluster.kill()
            raise
        (folder / "cluster.json").write_text(json.dumps(described), encoding="utf-8")
        return cluster

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the cluster that another process started in this folder."""
        described = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
        return cls(
            folder.resolve(),
            tuple(described["ports"]),
            tuple(described["secure_ports"]),
            described["owner"],
        )

    @property
    def brokers(self) -> range:
        """The numbers of the brokers."""
        return range(1, len(self.ports) + 1)

    @property
    def bootstrap(self) -> str:
        """The addresses for `bootstrap.servers`, without security."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.ports)

    @property
    def secure_bootstrap(self) -> str:
        """The addresses for `bootstrap.servers` with TLS and SASL."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.secure_ports)

    def process(self, number: int) -> ServerProcess:
        """Return the process of a broker, to pause it or to read its log."""
        return ServerProcess(f"broker {number}", self.folder / f"broker-{number}")

    def kill_broker(self, number: int) -> None:
        """kill -9 one broker."""
        self.process(number).kill()

    def stop_broker(self, number: int) -> None:
        """Ask a broker to end: it hands the lead of its partitions to others first."""
        self.process(number).stop()

    def start_broker(self, number: int, *options: str) -> None:
        """Start a broker that is down, on the same port and data; returns when it is ready.

        Options are for its JVM.
        """
        self._launch(number, *options)
        self._wait_started(number)

    def start_all(self) -> None:
        """Start every broker that is down and let paused ones go on."""
        down = [number for number in self.brokers if not self.process(number).is_running]
        for number in self.brokers:
            self.process(number).resume()
        for number in down:
            self._launch(number)
        for number in down:
            self._wait_started(number)

    def move_leader(self, topic: str, partition: int, *, to: int) -> None:
        """Make a broker the leader of a partition that it has a replica of; none has to die."""
        others = [number for number in self.brokers if number != to]
        assignment = {"topic": topic, "partition": partition, "replicas": [to, *others]}
        plan = self.folder / "reassignment.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [assignment]}))
        tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        arguments = (
            "--bootstrap-server",
            self.bootstrap,
            "--reassignment-json-file",
            str(plan),
        )
        self._run(tool, *arguments, "--execute")
        elected = ("--topic", topic, "--partition", str(partition))
        self._run(
            "org.apache.kafka.tools.LeaderElectionCommand",
            *(
                "--bootstrap-server",
                self.bootstrap,
                "--election-type",
                "preferred",
                *elected,
            ),
        )

    def kill(self) -> None:
        """Kill all brokers: what they hold is not needed any more."""
        for number in self.brokers:
            self.process(number).kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @cached_property
    def _java(self) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise ServerError("cannot run Kafka: java is not on the PATH: run `make java`")
        kafka = installed("kafka")
        archive = [f"-XX:SharedArchiveFile={path}" for path in kafka.glob(_ARCHIVE)]
        options = [*_JVM, *archive, f"-Djava.io.tmpdir={self.folder}"]
        return [java, *options, "-cp", str(kafka / "jars" / "*")]

    def _run(self, main_class: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._java, main_class, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(
                f"{main_class} failed:\n{done.stdout}\n{done.stderr}"[-4_000:]
            )

    def _format(
        self,
        controller_ports: list[int],
        secure: SecureListener | None,
        settings: Mapping[str, object],
    ) -> None:
        """Write the settings of every broker and format its folder."""
        for number in self.brokers:
            folder = self.process(number).folder
            folder.mkdir(parents=True)
            chosen = {
                **self._settings(number, controller_ports),
                **(secure.settings(folder) if secure else {}),
                **settings,
            }
            lines = [f"{name}={value}\n" for name, value in chosen.items()]
            file = folder / "server.properties"
            file.write_text("".join(lines), encoding="utf-8")
            file.chmod(0o600)
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")
        # An id that begins with a dash would be taken for an option.
        cluster_id = "k" + cluster_id[1:]
        users = secure.format_arguments() if secure else []

        def format_one(number: int) -> None:
            self._run(
                "kafka.tools.StorageTool",
                *("format", "--cluster-id", cluster_id, "--config"),
                str(self.process(number).folder / "server.properties"),
                *users,
            )

        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(format_one, self.brokers))

    def _settings(self, number: int, controller_ports: list[int]) -> dict[str, object]:
        broker_port, controller_port = self.ports[number - 1], controller_ports[number - 1]
        listeners = [f"PLAINTEXT://{LOOPBACK}:{broker_port}"]
        protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        if self.secure_ports:
            listeners.append(f"SECURE://{LOOPBACK}:{self.secure_ports[number - 1]}")
            protocols.append("SECURE:SASL_SSL")
        voters = [
            f"{voter}@{LOOPBACK}:{port}"
            for voter, port in enumerate(controller_ports, start=1)
        ]
        copies, in_sync = min(3, len(self.ports)), min(2, len(self.ports))
        return {
            "node.id": number,
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(
                [*listeners, f"CONTROLLER://{LOOPBACK}:{controller_port}"]
            ),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join(protocols),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.process(number).folder / "data",
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            **_QUICK,
        }

    def _launch(self, number: int, *options: str) -> None:
        broker = self.process(number)
        # Each start has a log of its own, in which readiness is looked for.
        if broker.log.exists():
            broker.log.rename(
                broker.folder / f"server-{len(list(broker.folder.glob('*.log')))}.log"
            )
        broker.start(
            *(*self._java, *options),
            "kafka.Kafka",
            str(broker.folder / "server.properties"),
            owner=self.owner,
        )

    def _wait_started(self, number: int) -> None:
        broker = self.process(number)
        broker.wait_ready(
            lambda: broker.log.exists() and _STARTED in broker.log.read_bytes()
        )


def write_class_archive() -> None:
    """Let a broker write down the classes that it loads: later ones start in half the time.

    The archive is beside the jars, whose path it holds. A JVM of another version ignores it.
    """
    archive = installed("kafka") / _ARCHIVE
    if archive.exists():
        return
    # Complete or not there: a broker that starts meanwhile must not find a half of it.
    unfinished = archive.with_suffix(f".{os.getpid()}")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder,
        KafkaCluster.start(Path(folder)) as cluster,
    ):
        cluster.stop_broker(1)
        cluster.start_broker(1, f"-XX:ArchiveClassesAtExit={unfinished}")
        cluster.process(1).stop(seconds=120.0)
    if unfinished.exists():
        unfinished.rename(archive)
