#!/usr/bin/env bash
# Run a command whose temporary files go to a folder of the checkout, which goes with them.
#
#   scripts/in_scratch.sh COMMAND…
#
# The folder stays if the command fails: what a failed test left behind may tell why.
set -euo pipefail

mkdir -p .scratch
TMPDIR=$(mktemp -d "$PWD/.scratch/XXXX")
export TMPDIR

status=0
"$@" || status=$?
if [ "$status" -eq 0 ]; then
    rm -rf "$TMPDIR"
    rmdir .scratch 2>/dev/null || true # others may be using it
else
    echo "in_scratch: temporary files are in $TMPDIR" >&2
fi
exit "$status"
