"""`python -m penstock` and the program `penstock`: the versions, or else the command line.

A report of a problem starts with the line that `--version` prints. Nothing else is imported for
it, so it also answers where a library is broken or missing.
"""

import sys
from collections.abc import Sequence

from penstock.core.versions import describe_versions


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer what the command line asks; if it asks nothing, show what can be asked."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(describe_versions())  # noqa: T201 (its purpose)
        return
    from penstock.cli.app import app

    app(given, prog_name="penstock")


if __name__ == "__main__":
    main()
