#!/usr/bin/env bash
# Pin every dependency of the project, with hashes, for all platforms and Pythons >= 3.11.
#
#   scripts/lock.sh [--upgrade]
#
# Pins that are still allowed are kept unless --upgrade is given. The files name no index and
# no machine: whoever installs from them chooses where the packages come from.
set -euo pipefail
cd "$(dirname "$0")/.."

pin() {
    local output=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-emit-index-url --no-emit-find-links --strip-extras \
        --custom-compile-command "make lock" --output-file "$output" "$@" >/dev/null
    echo "lock: $output pins $(grep -c '==' "$output") packages"
}

pin requirements/dev.txt pyproject.toml --all-extras --group dev "$@"
pin requirements/proto.txt requirements/proto.in "$@"
pin requirements/docs.txt requirements/docs.in "$@"
