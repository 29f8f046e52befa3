"""The project as its architecture tests see it: tracked files, modules, Markdown."""

import importlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
GENERATED = ("_pb2.py", "_pb2.pyi")

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`\n]*)$")


def tracked_files() -> list[Path]:
    """Return what git tracks or would track: everything but what .gitignore names.

    The checkout may belong to another user than the one who runs the tests, as in a container.
    """
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in sorted(listing.split("\0")) if name)
    return [path for path in paths if path.is_file()]


def python_files() -> list[Path]:
    """Return every Python file that people write."""
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and not path.name.endswith(GENERATED)
    ]


def name_of(path: Path) -> str:
    """Return a path as the project names it, for test ids and messages."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def resolve(dotted: str) -> object:
    """Return what `module:attribute.path` or `module.Class.method` names."""
    module_name, colon, attributes = dotted.partition(":")
    if not colon:
        module_name, attributes = _split_at_module(dotted)
    found: object = importlib.import_module(module_name)
    for attribute in filter(None, attributes.split(".")):
        found = getattr(found, attribute)
    return found


def _split_at_module(dotted: str) -> tuple[str, str]:
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if _is_module(name):
            return name, ".".join(parts[length:])
    raise ModuleNotFoundError(f"no part of {dotted!r} is a module")


def _is_module(name: str) -> bool:
    base = SOURCE.joinpath(*name.split("."))
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a Markdown file."""

    path: Path
    line: int
    """Of the opening fence, counted from 1."""
    info: str
    """What follows the opening fence."""
    text: str
    follows: bool
    """Whether only blank lines lie between this block and the one before."""

    @property
    def label(self) -> str:
        """Where the block is, for test ids."""
        return f"{name_of(self.path)}:{self.line}"


def markdown_files() -> list[Path]:
    """Return README.md and everything under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown file in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    follows = False
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            follows = follows and not lines[number].strip()
            number += 1
            continue
        start = number
        number += 1
        while number < len(lines) and lines[number].strip() != opening["fence"]:
            number += 1
        body = (line.removeprefix(opening["indent"]) for line in lines[start + 1 : number])
        text = "".join(line + "\n" for line in body)
        yield Block(path, start + 1, opening["info"].strip(), text, follows)
        follows = True
        number += 1


def table_rows(text: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of every Markdown table that has exactly these columns."""
    rows = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if tuple(cells) == columns:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            assert len(cells) == len(columns), f"wrong number of cells: {line}"
            rows.append(dict(zip(columns, cells, strict=True)))
    return rows
