"""The command line of the servers: install them, list them, or run one until Ctrl-C.

python -m scripts.servers install            # all; or: install kafka s3
python -m scripts.servers list
python -m scripts.servers run kafka --brokers 3 --port 9092
python -m scripts.servers run s3 --port 9000
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from scripts.servers.installation import PACKAGES, InstallError, install
from scripts.servers.kafka import KafkaCluster, write_class_archive
from scripts.servers.processes import ServerError
from scripts.servers.s3 import BUCKET, S3Server


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.servers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser(
        "install", help="install servers into the cache folder"
    )
    installing.add_argument("names", nargs="*", choices=[[], *PACKAGES], metavar="NAME")
    commands.add_parser("list", help="what is installed, and where")
    running = commands.add_parser("run", help="run a server until Ctrl-C")
    running.add_argument("name", choices=["kafka", "s3"])
    running.add_argument("--port", type=int, help="of the (first) server; else a free one")
    running.add_argument("--brokers", type=int, choices=[1, 3], default=1)
    running.add_argument(
        "--folder", type=Path, help="an empty folder for data; else one that goes"
    )
    return parser.parse_args()


def _install(names: list[str]) -> int:
    failed = 0
    for name in names or PACKAGES:
        try:
            print(f"{name}: {install(name)}", flush=True)
            if name == "kafka":
                write_class_archive()
        except (InstallError, ServerError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed += 1
    return 1 if failed else 0


def _list() -> int:
    for name, package in PACKAGES.items():
        state = "installed in" if package.is_installed else "not installed; would be in"
        print(f"{name} {package.version}: {state} {package.folder}")
    return 0


def _run(name: str, folder: Path, port: int | None, brokers: int) -> int:
    # kill ends the server as Ctrl-C does; after kill -9 its keeper does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        KafkaCluster.start(folder, brokers=brokers, port=port)
        if name == "kafka"
        else S3Server.start(folder, port=port)
    ) as server:
        if isinstance(server, KafkaCluster):
            print(f"bootstrap.servers={server.bootstrap}")
        else:
            print(f"bucket={BUCKET}", *(f"{k}={v}" for k, v in server.options().items()))
        print("runs until Ctrl-C", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0


def main() -> int:
    """Do what the command line says; return the exit code."""
    chosen = _arguments()
    if chosen.command == "install":
        return _install(chosen.names)
    if chosen.command == "list":
        return _list()
    try:
        if chosen.folder:
            return _run(chosen.name, chosen.folder, chosen.port, chosen.brokers)
        with tempfile.TemporaryDirectory(prefix=f"penstock-{chosen.name}-") as folder:
            return _run(chosen.name, Path(folder), chosen.port, chosen.brokers)
    except (InstallError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
