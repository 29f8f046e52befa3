"""Run the benchmarks: `python -m benchmarks [--suite NAME] [--quick] [--profile] [--json [FILE]]`.

A suite is a module of this folder with `run(quick: bool)` that returns a row or a list of rows:
plain dictionaries with at least `name` and figures, and `ok` where the row has a target. Each
suite runs in a process of its own, so that none inherits another's memory or caches. Every line
printed is a row; the machine is described on standard error; the exit code is 1 if a row is not
ok or a suite fails.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.suites import Row, run_all, suite_names

LIBRARIES = (
    "penstock",
    "pyarrow",
    "numpy",
    "polars",
    "obstore",
    "deltalake",
    "duckdb",
    "pyspark",
    "protobuf",
    "xxhash",
)


def describe_machine() -> Row:
    """Return what figures depend on besides the code."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = suite_names()
    parser.add_argument("--suite", action="append", choices=known, help="may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="small inputs: does it still run?"
    )
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=Path("-"),
        help="write everything to this file too; JSON lines are printed in any case",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="say where Penstock's epochs spend their time",
    )
    options = parser.parse_args()

    if options.profile:
        os.environ["PENSTOCK_PROFILE_ROOT"] = tempfile.mkdtemp(prefix="penstock-profile-")
    machine = describe_machine()
    print(json.dumps(machine), file=sys.stderr, flush=True)
    rows = []
    for measured in run_all(options.suite or known, quick=options.quick):
        row = {**measured, "versions": machine["versions"]}
        print(json.dumps(row), flush=True)
        rows.append(row)
    if options.json is not None and options.json != Path("-"):
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({**machine, "rows": rows}, indent=2) + "\n", "utf-8"
        )
    return 0 if rows and all(row.get("ok", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
