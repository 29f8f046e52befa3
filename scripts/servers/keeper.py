"""Keep one server: start it, wait for it, and end it when its owner is gone.

Run as a program by `processes`, with no other file of the project: `keeper.py FOLDER OWNER COMMAND…`.
It leaves the process that started it at once, so any process can wait for the server's end: the
file `pid` in the folder is there as long as the server runs. Nothing of a server is left when its
owner was killed, which no handler in the owner could promise.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

LOOK_SECONDS = 0.5
"""How often it looks whether the owner lives."""


def lives(pid: int) -> bool:
    """Return whether a process runs; one that ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
    except OSError:  # not Linux
        return True
    return state.split()[0] != "Z"


def end_with_parent() -> None:
    """Have Linux kill this process when the keeper dies: nobody would end it then."""
    set_signal = 1
    ctypes.CDLL(None).prctl(set_signal, signal.SIGKILL)


def keep(folder: Path, owner: int, command: list[str]) -> None:
    """Run the command until it ends or the owner does; its output goes to `server.log`."""
    pid_file = folder / "pid"
    with (folder / "server.log").open("ab", buffering=0) as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no threads here
        )
        # Written whole: whoever sees the file finds a number in it.
        (folder / "pid.new").write_text(str(server.pid), encoding="ascii")
        (folder / "pid.new").rename(pid_file)
        try:
            while lives(owner):
                try:
                    server.wait(LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            server.kill()
            server.wait()
            pid_file.unlink(missing_ok=True)


def main() -> None:
    """Become a process without a terminal and without a parent, then keep the server."""
    folder, owner = Path(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        keep(folder, owner, sys.argv[3:])
    except OSError as error:
        with (folder / "server.log").open("a", encoding="utf-8") as log:
            log.write(f"cannot be started: {error}\n")


if __name__ == "__main__":
    main()
