"""Python processes that write to a local store, for tests that race or kill them."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import penstock

_SOURCE = Path(penstock.__file__).parents[1]


def start_writer(script: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a process that has imported the store and runs `script`; talk to it by pipes."""
    prelude = f"""
        import sys
        sys.path.insert(0, {str(_SOURCE)!r})
        from pathlib import Path
        from penstock.state.storage.local_disk import LocalStore
        from penstock.state.storage.local_disk import staged_file
        def say(*words):
            print(*words, flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", dedent(prelude) + dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def hear(process: "subprocess.Popen[str]") -> str:
    """Wait for the next line the process says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    """Send a line to the process."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def end(process: "subprocess.Popen[str]", *, kill: bool = False) -> None:
    """Let the process end, or kill it outright, and forget its pipes."""
    if kill:
        process.kill()
    process.communicate()
