"""Generate the protobuf code from every .proto file, or check the committed code against it.

Run by `make proto` and `make proto-check` in an environment of its own, because the generator
decides the oldest protobuf runtime that can load its output, and that environment holds
exactly this oldest one. The check therefore also proves that the oldest runtime loads it.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import google.protobuf

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
SUFFIXES = ("_pb2.py", "_pb2.pyi")


def generate(protos: list[Path], target: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCE}"]
    command += [f"--python_out={target}", f"--pyi_out={target}", *map(str, protos)]
    subprocess.run(command, check=True)


def outputs_of(proto: Path) -> list[Path]:
    """Return the generated files of a .proto file, relative to the source folder."""
    stem = proto.relative_to(SOURCE).with_suffix("")
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]


def stale_files(protos: list[Path]) -> list[Path]:
    """Return the committed files that differ from what the generator makes now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(protos, Path(folder))
        return [
            output
            for proto in protos
            for output in outputs_of(proto)
            if not (SOURCE / output).exists()
            or (SOURCE / output).read_bytes() != (Path(folder) / output).read_bytes()
        ]


def load_all(protos: list[Path]) -> int:
    """Import the committed code by file, since the package needs more than protobuf; count messages."""
    count = 0
    for proto in protos:
        code = SOURCE / outputs_of(proto)[0]
        spec = importlib.util.spec_from_file_location(code.stem, code)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name in module.DESCRIPTOR.message_types_by_name:
            kind = getattr(module, name)
            assert kind.FromString(kind().SerializeToString()) == kind()
            count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    protos = sorted(SOURCE.rglob("*.proto"))
    if not options.check:
        generate(protos, SOURCE)
        print(f"generate_proto: wrote the code of {len(protos)} .proto file(s)")
        return 0
    stale = stale_files(protos)
    for output in stale:
        print(
            f"generate_proto: src/{output} is not what `make proto` makes; run it and commit"
        )
    if stale:
        return 1
    count = load_all(protos)
    version = google.protobuf.__version__
    print(f"generate_proto: up to date; {count} messages load with protobuf {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
