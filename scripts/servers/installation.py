"""Where servers are installed and how they get there: once per user, whole or not at all.

Each is a folder `<name>-<version>` of the user's cache folder, so that a fresh clone finds what
an earlier one has built. It is made under another name and renamed when it is complete: a
folder that is there can be used. A lock keeps two installers from doing the same work.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KAFKA = "4.1.0"
LOG4J = "2.24.3"
"""Of the binding of slf4j 1.7 to the log4j that Kafka comes with: the versions belong together."""
SPARK_KAFKA = "4.2.0"
"""The newest that Maven Central has; it runs on Spark 4.3. Of its small companion that fetches
tokens 4.0.0 is the newest there, and has the same classes."""
VERSITYGW = "v1.8.0"
ATTEMPTS = 3
"""How often a download is tried: registries are behind networks."""


class InstallError(Exception):
    """A server cannot be had here. The message says what to install or to look at."""


@dataclass(frozen=True)
class Package:
    """One thing to install."""

    name: str
    version: str
    fill: Callable[[Path], None]
    """Puts all of it into an empty folder, or raises `InstallError`."""

    @property
    def folder(self) -> Path:
        """Where it is, if it is there."""
        return cache_folder() / f"{self.name}-{self.version}"

    @property
    def is_installed(self) -> bool:
        return self.folder.is_dir()


def cache_folder() -> Path:
    """Return the folder that holds all installed servers of this user."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "penstock-servers")


def install(name: str) -> Path:
    """Return the folder of a package, after installing it where it is not there yet."""
    package = PACKAGES[name]
    cache_folder().mkdir(parents=True, exist_ok=True)
    with cache_folder().joinpath(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not package.is_installed:
            print(f"installing {name} {package.version} into {package.folder}", flush=True)
            started = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_folder()))
            try:
                package.fill(started)
                started.chmod(0o755)
                started.rename(package.folder)
            finally:
                shutil.rmtree(started, ignore_errors=True)
    return package.folder


def installed(name: str) -> Path:
    """Return the folder of a package that is there; else say how to get it."""
    package = PACKAGES[name]
    if not package.is_installed:
        raise InstallError(
            f"{name} {package.version} is not installed in {package.folder}: run "
            f"`python -m scripts.servers install {name}` (`make servers` installs what tests need)"
        )
    return package.folder


def missing_program(program: str) -> str | None:
    """Return what to do about a program that is not there, or None if it is."""
    advice = {
        "java": "install a Java 17 or later (`make java` does where the system allows it)",
        "mvn": "install Maven (for example `apt-get install maven`)",
        "go": "install Go 1.23 or later (for example from the system's packages)",
    }
    return (
        None
        if shutil.which(program)
        else f"{program} is not on the PATH: {advice[program]}"
    )


def _run(what: str, command: list[str], **variables: str) -> None:
    """Run an installer's command, more than once where it fails, and show its end if it did."""
    if advice := missing_program(command[0]):
        raise InstallError(f"cannot install {what}: {advice}")
    said = ""
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        said = "\n".join(done.stdout.splitlines()[-20:])
        print(
            f"{command[0]} failed, try {attempt} of {ATTEMPTS}", file=sys.stderr, flush=True
        )
    raise InstallError(
        f"cannot install {what}: `{' '.join(command)}` failed {ATTEMPTS} times. If it could not "
        f"reach its registry, check the network and the client's own settings. It said:\n{said}"
    )


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """<dependency>
  <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{without}
</dependency>"""
_ALONE = """<exclusions>
  <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
</exclusions>"""


def _copy_jars(folder: Path, *coordinates: str, alone: bool = False) -> None:
    """Let Maven copy some jars, and all that they need at run time unless they are to be alone."""
    without = _ALONE if alone else ""
    dependencies = (
        _DEPENDENCY.format(*one.split(":"), without=without) for one in coordinates
    )
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(dependencies="\n".join(dependencies)), encoding="utf-8")
    command = [
        *("mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"),
    ]
    _run(coordinates[0], command)


def _fill_kafka(folder: Path) -> None:
    if advice := missing_program("java"):
        raise InstallError(f"cannot run Kafka: {advice}")
    _copy_jars(
        folder,
        f"org.apache.kafka:kafka_2.13:{KAFKA}",
        f"org.apache.kafka:kafka-tools:{KAFKA}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J}",
    )


def _fill_spark_kafka(folder: Path) -> None:
    # Spark has all that they need besides, and two versions of a class are one too many. Asked
    # for by name, none comes from the other repositories that Spark's own poms list.
    _copy_jars(
        folder,
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_KAFKA}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
        alone=True,
    )


def _fill_s3(folder: Path) -> None:
    _run(
        "versitygw",
        ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}"],
        GOBIN=str(folder / "bin"),
    )


PACKAGES = {
    package.name: package
    for package in (
        Package("kafka", KAFKA, _fill_kafka),
        Package("spark-kafka", SPARK_KAFKA, _fill_spark_kafka),
        Package("s3", VERSITYGW, _fill_s3),
    )
}


def spark_kafka_jars() -> list[Path]:
    """Return the jars that give Spark its own Kafka source, for `spark.jars`."""
    return sorted(installed("spark-kafka").glob("jars/*.jar"))
