"""A program that runs a small job on the master it is given, as users write them."""

import sys

import penstock as ps


def run() -> None:
    """Count a few numbers on Spark."""
    folder, master, *options = sys.argv[1:]
    pipeline = ps.Pipeline("small")
    pipeline.read("numbers", ps.impulse(count=5)).write("out", ps.blackhole())
    pipeline.run(folder, master=master, shows_logs="shows-logs" in options)


if __name__ == "__main__":
    ps.main(run)
