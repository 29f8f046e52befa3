"""Draw the rooms of the house: every folder of src with its files and the one job of each.

    python scripts/rooms.py             prints the picture
    python scripts/rooms.py --write     puts it into docs/architecture.md
    python scripts/rooms.py --check     fails if the page shows other rooms than there are

The picture is made of what the code says of itself: the first line of each file. Edit that
line, not the page.
"""

import ast
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "penstock"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- rooms: made by scripts/rooms.py -->\n"
END = "<!-- end of rooms -->\n"
WIDTH = 124


def draw_rooms(package: Path = PACKAGE) -> str:
    """Return the picture as a Markdown block."""
    return "```text\n" + "".join(f"{line}\n" for line in _draw_folder(package, 0)) + "```\n"


def _draw_folder(folder: Path, depth: int) -> list[str]:
    indent = "  " * depth
    files = [
        path for path in sorted(folder.glob("*.py")) if not path.name.endswith("_pb2.py")
    ]
    rooms = [path for path in files if path.name != "__init__.py"]
    lines = [_line(f"{indent}{folder.name}/", folder / "__init__.py")]
    lines += [_line(f"{indent}  {path.stem}", path) for path in rooms]
    for below in sorted(
        path for path in folder.iterdir() if (path / "__init__.py").exists()
    ):
        lines += _draw_folder(below, depth + 1)
    return lines


def _line(name: str, path: Path) -> str:
    line = f"{name:<26}{first_line(path)}".rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 1].rstrip() + "…"


def first_line(path: Path) -> str:
    """Return what a file says of itself, without its own name in front."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].removesuffix(".").removesuffix(":")


def replace_rooms(page: str, picture: str) -> str:
    """Return the page with another picture between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"rooms: {PAGE.name} has no lines {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}\n{picture}\n{end}{after}"


def main() -> None:
    picture = draw_rooms()
    if sys.argv[1:] not in (["--write"], ["--check"]):
        print(picture, end="")
        return
    page = PAGE.read_text(encoding="utf-8")
    wanted = replace_rooms(page, picture)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(wanted, encoding="utf-8")
    elif page != wanted:
        differences = difflib.unified_diff(
            page.splitlines(),
            wanted.splitlines(),
            "docs/architecture.md",
            "src",
            lineterm="",
            n=0,
        )
        raise SystemExit("\n".join([*differences, "rooms: run make rooms"]))


if __name__ == "__main__":
    main()
