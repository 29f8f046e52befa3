"""Suites: which there are, and how one runs in a process of its own."""

import ast
import importlib
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).resolve().parent


def suite_names() -> list[str]:
    """Return the modules of this folder that define `run`, found without importing them."""
    return [
        path.stem
        for path in sorted(FOLDER.glob("*.py"))
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "run"
            for node in ast.parse(path.read_text(encoding="utf-8")).body
        )
    ]


def run_suite(name: str, *, quick: bool) -> list[Row]:
    """Run one suite here and now; a failure becomes a row that is not ok."""
    started = time.perf_counter()
    try:
        result = importlib.import_module(f"benchmarks.{name}").run(quick=quick)
        rows = result if isinstance(result, list) else [result]
    except Exception as error:  # noqa: BLE001 - one broken suite must not hide the others' figures
        traceback.print_exc()
        rows = [{"name": name, "ok": False, "error": repr(error)}]
    seconds = round(time.perf_counter() - started, 2)
    return [
        {"suite": name, "quick": quick, "suite_seconds": seconds, **row} for row in rows
    ]


def end_with_parent() -> None:
    """Have this process end when the one that started it does, however that ended.

    Killed or timed out, a benchmark would leave its sides behind, each with a JVM at work.
    """
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)  # a JVM notices that its standard input has ended

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def run_all(names: list[str], *, quick: bool) -> Iterator[Row]:
    """Yield the rows of the suites, each run in a fresh process."""
    spawn = multiprocessing.get_context("spawn")
    for name in names:
        with ProcessPoolExecutor(1, spawn, end_with_parent) as pool:
            try:
                yield from pool.submit(run_suite, name, quick=quick).result()
            except BrokenProcessPool as error:
                yield {
                    "suite": name,
                    "name": name,
                    "ok": False,
                    "error": f"killed: {error}",
                }
