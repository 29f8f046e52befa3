#!/usr/bin/env bash
# Build a virtual environment that holds exactly what a lock file names.
#
#   scripts/make_venv.sh FOLDER LOCK
#
# Uses $PYTHON if set, else the first Python of at least 3.11 that it finds. FOLDER/.locked, a copy
# of the lock, is written last: without it, or with other contents, the folder is built anew.
set -euo pipefail

folder=$1
lock=$2

if cmp -s "$lock" "$folder/.locked"; then
    touch "$folder/.locked" # newer than the lock again, which was only touched
    exit 0
fi

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    {
        echo "make_venv: Penstock needs Python 3.11 or newer."
        echo "  Found: ${PYTHON:-python3} = $("${PYTHON:-python3}" --version 2>&1 || true)"
        echo "  Install a newer one, or name it: make setup PYTHON=/path/to/python3.11"
    } >&2
    return 1
}

python=$(find_python)
echo "make_venv: $folder from $lock with $("$python" --version)"
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    --require-hashes --requirement "$lock"
cp "$lock" "$folder/.locked"
