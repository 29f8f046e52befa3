"""What must be there before Spark is started: a Java it can run on, a master that answers.

Spark itself tells of neither in a way that helps: an old Java fails with a class file version,
and a master that cannot be reached is tried for a minute. Both are found out here, in less
than a second or a few, before anything is started or written.
"""

import re
import shutil
import socket
import subprocess
from pathlib import Path

from penstock.core.settings import variable
from penstock.errors import ErrorCode, UserError

NEEDED_JAVA = 17
_VERSION = re.compile(r'version "(?P<version>[^"]+)"')
_CONNECT_SECONDS = 5.0
_JAVA_SECONDS = 20.0
_STANDALONE = "spark://"
_HOW_TO_GET_JAVA = f"Install Java {NEEDED_JAVA} or newer, or point JAVA_HOME to one (in a checkout: `make java`)"


def check_can_start(master: str) -> None:
    """Raise `UserError` if Spark could not start with this master, saying why."""
    # A JVM that somebody started for us, as spark-submit does, is past all of this.
    if variable("PYSPARK_GATEWAY_PORT") is None:
        check_java()
    if master.startswith(_STANDALONE):
        check_master(master)


def check_java() -> None:
    """Look at the Java that Spark will use: that of JAVA_HOME, else the one on PATH."""
    home = variable("JAVA_HOME")
    wanted = str(Path(home) / "bin" / "java") if home else "java"
    program = shutil.which(wanted)
    if program is None:
        where = (
            f"JAVA_HOME is {home!r}, and there is no bin/java" if home else "not on PATH"
        )
        raise _java_error(f"no Java was found ({where})", found=None)
    version = _read_version(program)
    if version is None:
        raise _java_error(f"{program} does not tell its version", found=None)
    if _major_of(version) < NEEDED_JAVA:
        raise _java_error(f"{program} is Java {version}", found=version)


def check_master(master: str) -> None:
    """Ask a standalone master, or any of several, whether somebody listens there."""
    reasons = []
    for place in master.removeprefix(_STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(
                f"the Spark master {master!r} has no host and port: write spark://host:7077",
                code=ErrorCode.INVALID_URL,
                master=master,
            )
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return
        except (OSError, OverflowError) as error:
            reasons.append(f"{place}: {error}")
    raise UserError(
        f"the Spark master {master!r} cannot be reached ({'; '.join(reasons)}). Check its "
        "address and that it runs, or leave the master out to run Spark in this process",
        code=ErrorCode.ENGINE_MISSING,
        master=master,
    )


def _read_version(program: str) -> str | None:
    try:
        # Without performance data, which Java would leave a folder for in /tmp.
        done = subprocess.run(  # noqa: S603 (the program that Spark is about to start)
            [program, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_JAVA_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return None if match is None else match["version"]


def _major_of(version: str) -> int:
    """Return 17 for "17.0.9", and 8 for "1.8.0_392"."""
    digits = re.match(r"(?:1\.)?(\d+)", version)
    return int(digits[1]) if digits is not None else 0


def _java_error(what: str, *, found: str | None) -> UserError:
    return UserError(
        f"Spark cannot start: it needs Java {NEEDED_JAVA} or newer, and {what}. "
        f"{_HOW_TO_GET_JAVA}",
        code=ErrorCode.ENGINE_MISSING,
        needed=NEEDED_JAVA,
        found=found,
    )
