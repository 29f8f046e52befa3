"""A program that runs a small job on the master it is given, as users write them."""

import sys

import penstock as pen


def run() -> None:
    """Count a few numbers on Spark."""
    folder, master, *options = sys.argv[1:]
    pipeline = pen.Pipeline("small")
    pipeline.read("numbers", pen.impulse(count=5)).write("out", pen.blackhole())
    pipeline.run(folder, master=master, show_logs="shows-logs" in options)


if __name__ == "__main__":
    pen.main(run)
