"""Measure the house: how much code there is, how it is cut up, and what one batch passes.

    python scripts/house.py [ROOT] [--json] [--walk]      or: make house HOUSE_ARGS=--walk

ROOT is a checkout, by default this one. How things are counted:

    files       all Python files under src/penstock but generated ones (`*_pb2.py`)
    modules     files but `__init__.py`; only these are large, small or imported by one
    docstrings  all lines of statements that are a string: also those under fields and constants
    comments    lines that hold nothing but a comment
    code        every other line that is not blank, imports included; imports are shown apart too
    folders     have files (`__init__.py` too) and folders in them; more than 20 files, or fewer
                than 4 of both, are marked
    importers   modules that name another one in an import: at the top, late, or for types only

What is counted of a walk is said in `house_walk.py`, which runs it.
"""

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WALKER = Path(__file__).resolve().with_name("house_walk.py")
PACKAGE = "penstock"
GENERATED = "_pb2.py"

MOST_FILES_IN_A_FOLDER = 20
FEWEST_ENTRIES_OF_A_FOLDER = 4
MODULE_LINES = (100, 450)
GOALS = {"modules": 150, "code": 25_000, "functions": 350, "files": 65}
"""Those of a walk are for the closing epoch."""
SHOWN_MODULES = 10
SHOWN_ONCE_IMPORTED = 20


@dataclass(frozen=True, slots=True)
class Lines:
    """How many lines of which sort; `imports` are part of `code`."""

    lines: int = 0
    code: int = 0
    imports: int = 0
    docstrings: int = 0
    comments: int = 0
    blank: int = 0

    def __add__(self, other: "Lines") -> "Lines":
        return Lines(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file: its path below the package's folder, its lines, what it imports."""

    path: PurePosixPath
    lines: Lines
    imported: frozenset[str]
    """Dotted names as written, of modules or of names in them."""

    @property
    def is_module(self) -> bool:
        return self.path.name != "__init__.py"

    @property
    def dotted(self) -> str:
        parts = (PACKAGE, *self.path.with_suffix("").parts)
        return ".".join(parts if self.is_module else parts[:-1])

    @property
    def folder(self) -> str:
        return package_of(self.path.as_posix())


@dataclass(frozen=True, slots=True)
class Step:
    """A function that a batch entered for the first time."""

    file: str
    line: int
    function: str


def package_of(file: str) -> str:
    """Return the package of a file, below `penstock`; that one itself by its own name."""
    return ".".join(PurePosixPath(file).parent.parts) or PACKAGE


# ---- lines


def count_lines(text: str) -> Lines:
    tree = ast.parse(text)
    docstrings = _spanned(node for node in ast.walk(tree) if _is_string_statement(node))
    imports = _spanned(
        node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
    )
    rows = text.splitlines()
    blank = {number for number, row in enumerate(rows, start=1) if not row.strip()}
    blank -= docstrings
    comments = _comment_lines(text)
    code = len(rows) - len(docstrings) - len(comments) - len(blank)
    return Lines(len(rows), code, len(imports), len(docstrings), len(comments), len(blank))


def _is_string_statement(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _spanned(nodes: Iterable[ast.AST]) -> set[int]:
    return {
        number
        for node in nodes
        if isinstance(node, ast.stmt)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _comment_lines(text: str) -> set[int]:
    return {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
    }


# ---- sources


def read_sources(root: Path) -> list[SourceFile]:
    package = root / "src" / PACKAGE
    if not package.is_dir():
        raise SystemExit(f"house: {root} has no folder src/{PACKAGE}: is it a checkout?")
    found = []
    for path in sorted(package.rglob("*.py")):
        if not path.name.endswith(GENERATED):
            text = path.read_text(encoding="utf-8")
            name = PurePosixPath(path.relative_to(package).as_posix())
            found.append(
                SourceFile(name, count_lines(text), frozenset(names_imported(text)))
            )
    return found


def names_imported(text: str) -> Iterator[str]:
    """Yield `a.b` and `a.b.c` for `from a.b import c`: only one of both is a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_edges(sources: Sequence[SourceFile]) -> list[tuple[SourceFile, SourceFile]]:
    """Return who imports whom, among modules, each pair once."""
    modules = {source.dotted: source for source in sources if source.is_module}
    return [
        (importer, modules[name])
        for importer in modules.values()
        for name in sorted(importer.imported & modules.keys() - {importer.dotted})
    ]


# ---- the walk


def walk(root: Path) -> dict[str, list[Step]]:
    """Run both batches with the code of that checkout; see `house_walk.py`."""
    source = root / "src"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PENSTOCK_")
    }
    # Elsewhere, because settings are also read from a file in the working directory.
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        done = subprocess.run(
            [sys.executable, str(WALKER), str(source)],
            cwd=folder,
            env=kept | {"PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    walks: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return {name: [Step(**step) for step in steps] for name, steps in walks.items()}


def figures_of_walk(steps: Sequence[Step]) -> dict[str, int]:
    changes = sum(
        package_of(before.file) != package_of(after.file)
        for before, after in pairwise(steps)
    )
    files = {step.file for step in steps}
    return {"functions": len(steps), "files": len(files), "package_changes": changes}


# ---- figures


def measure(root: Path) -> dict[str, Any]:
    """Return every figure but the walks, as plain data."""
    sources = read_sources(root)
    modules = sorted(
        (source for source in sources if source.is_module),
        key=lambda module: (module.lines.lines, module.path),
    )
    sizes = {module.path.as_posix(): module.lines.lines for module in modules}
    edges = import_edges(sources)
    importers = Counter(imported.path.as_posix() for _, imported in edges)
    smallest, largest = MODULE_LINES
    return {
        "files": len(sources),
        "modules": len(modules),
        **asdict(sum((source.lines for source in sources), Lines())),
        "folders": measure_folders(sources),
        "largest": dict(list(sizes.items())[: -SHOWN_MODULES - 1 : -1]),
        "smallest": dict(list(sizes.items())[:SHOWN_MODULES]),
        "modules_below_100_lines": sum(size < smallest for size in sizes.values()),
        "modules_above_450_lines": sum(size > largest for size in sizes.values()),
        "imported_by_one": [name for name in sorted(sizes) if importers[name] == 1],
        "module_imports": measure_imports(edges),
    }


def measure_folders(sources: Sequence[SourceFile]) -> dict[str, dict[str, Any]]:
    names = sorted({source.folder for source in sources})
    folders = {}
    for name in names:
        inside = [source for source in sources if source.folder == name]
        within = "" if name == PACKAGE else f"{name}."
        children = {
            other.removeprefix(within).split(".")[0]
            for other in names
            if other not in (name, PACKAGE) and other.startswith(within)
        }
        folders[name] = {
            "files": len(inside),
            "folders": len(children),
            **asdict(sum((source.lines for source in inside), Lines())),
            "offence": offence_of(len(inside), len(children)),
        }
    return folders


def offence_of(files: int, folders: int) -> str:
    if files > MOST_FILES_IN_A_FOLDER:
        return f"> {MOST_FILES_IN_A_FOLDER} files"
    is_small = files + folders < FEWEST_ENTRIES_OF_A_FOLDER
    return f"< {FEWEST_ENTRIES_OF_A_FOLDER} files" if is_small else ""


def measure_imports(edges: Sequence[tuple[SourceFile, SourceFile]]) -> dict[str, Any]:
    pairs = Counter((importer.folder, imported.folder) for importer, imported in edges)
    packages: dict[str, dict[str, int]] = {}
    for (importer, imported), count in sorted(pairs.items()):
        packages.setdefault(importer, {})[imported] = count
    between = {pair: count for pair, count in pairs.items() if len(set(pair)) == 2}
    return {
        "all": len(edges),
        "between_packages": sum(between.values()),
        "pairs_of_packages": len(between),
        "by_package": packages,
    }


# ---- text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned columns: the first and the last to the left, numbers to the right."""
    cells = [list(header), *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if place in (0, len(header) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines) + "\n"


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def show_summary(figures: Mapping[str, Any]) -> str:
    rows: list[tuple[str, int, str]] = [
        ("files", figures["files"], ""),
        ("modules", figures["modules"], f"<= {GOALS['modules']:,}"),
        ("lines of code", figures["code"], f"<= {GOALS['code']:,}"),
    ]
    for name, walked in figures["walks"].items():
        for what in ("functions", "files", "package_changes"):
            has_goal = name == "closing" and what in GOALS
            goal = f"<= {GOALS[what]:,}" if has_goal else ""
            rows.append((f"{name} epoch: {what.replace('_', ' ')}", walked[what], goal))
    return table(("", "now", "goal"), rows)


def show_folders(figures: Mapping[str, Any]) -> str:
    columns = ("files", *Lines.__dataclass_fields__)
    rows = [
        (name, *(folder[column] for column in columns), folder["offence"])
        for name, folder in figures["folders"].items()
    ]
    rows.append(("all", *(figures[column] for column in columns), ""))
    return table(("package", *columns, ""), rows)


def show_modules(figures: Mapping[str, Any]) -> str:
    sides = (figures["largest"].items(), figures["smallest"].items())
    rows = [
        (f"{large:<44}", size, "  ", little, small)
        for (large, size), (small, little) in zip(*sides, strict=True)
    ]
    below, above = figures["modules_below_100_lines"], figures["modules_above_450_lines"]
    once = figures["imported_by_one"]
    shown = [
        *once[:SHOWN_ONCE_IMPORTED],
        *(["…"] if len(once) > SHOWN_ONCE_IMPORTED else []),
    ]
    return (
        table(("largest modules", "lines", "", "lines", "smallest modules"), rows)
        + f"\n{below} modules have less than {MODULE_LINES[0]} lines,"
        f" {above} more than {MODULE_LINES[1]}.\n"
        f"\n{len(once)} modules are imported by one other module only:\n"
        + "".join(f"  {name}\n" for name in shown)
    )


def show_imports(figures: Mapping[str, Any]) -> str:
    """Return who imports from whom, only the outermost packages."""
    imports = figures["module_imports"]
    counts: Counter[tuple[str, str]] = Counter()
    for importer, found in imports["by_package"].items():
        for imported, count in found.items():
            counts[importer.split(".")[0], imported.split(".")[0]] += count
    names = sorted({name for pair in counts for name in pair})
    rows = [(name, *(counts[name, other] or "" for other in names), "") for name in names]
    return (
        f"{imports['all']:,} imports of a module by a module;"
        f" {imports['between_packages']:,} from another package,"
        f" in {imports['pairs_of_packages']} pairs of packages:\n\n"
        + table(("imports of ↓ from →", *names, ""), rows)
    )


def show_walk(name: str, steps: Sequence[Step]) -> str:
    """Return the files of a walk with their number of functions, then every function in turn."""
    files = Counter(step.file for step in steps)
    rows = []
    for number, step in enumerate(steps, start=1):
        is_change = number == 1 or package_of(steps[number - 2].file) != package_of(
            step.file
        )
        place = f"{step.file}:{step.line}"
        rows.append(("*" if is_change else "", number, f"{place:<44}  {step.function}"))
    return (
        f"The {name} epoch, files as they are entered\n\n"
        + table(("file", "functions", ""), ((*item, "") for item in files.items()))
        + f"\nThe {name} epoch, functions as they are entered; * changes the package\n\n"
        + table(("", "step", "function"), rows)
    )


def show(figures: Mapping[str, Any]) -> str:
    parts = (show_summary, show_folders, show_modules, show_imports)
    return "\n".join(part(figures) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the code of a checkout.")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--walk", action="store_true", help="print the walks, step by step")
    options = parser.parse_args()
    root = options.root.resolve()
    walks = walk(root)
    if options.walk and not options.json:
        print("\n".join(show_walk(name, steps) for name, steps in walks.items()), end="")
        return
    figures = measure(root)
    figures["walks"] = {name: figures_of_walk(steps) for name, steps in walks.items()}
    if options.walk:
        for name, steps in walks.items():
            figures["walks"][name]["steps"] = [asdict(step) for step in steps]
    print(json.dumps(figures, indent=2) if options.json else show(figures).rstrip())


if __name__ == "__main__":
    main()
