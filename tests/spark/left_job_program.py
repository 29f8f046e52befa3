"""A program that starts a job on Spark and ends without waiting for it."""

import sys
import threading

import penstock as pen


def main() -> None:
    """Leave the job running after its first epoch."""
    published = threading.Event()

    def note(status: pen.JobStatus) -> None:
        if status.epochs_published:
            published.set()

    pipeline = pen.Pipeline("left")
    pipeline.read("numbers", pen.impulse(rate=1_000)).write("out", pen.blackhole())
    job = pipeline.start(sys.argv[1], on_status=note, trigger="100ms")
    if not published.wait(120):
        raise TimeoutError(repr(job))
    sys.stdout.write("the end\n")


if __name__ == "__main__":
    main()
