"""Draws the figures of the suite `nexmark`: a picture and a table in the documentation.

python -m benchmarks --suite nexmark --json benchmarks/results/nexmark.json
python -m benchmarks.nexmark_report benchmarks/results/nexmark.json
"""

import json
import sys
from collections.abc import Iterable
from html import escape
from math import log10
from pathlib import Path
from textwrap import shorten

from benchmarks.suites import Row
from examples.nexmark.__main__ import queries

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE, PAGE = DOCS / "pictures" / "nexmark.svg", DOCS / "performance.md"
BEGIN = "<!-- nexmark: made by benchmarks/nexmark_report.py -->"
END = "<!-- end of nexmark -->"
SIDES = {
    "per_core": ("Penstock", "#1f6feb", 11),
    "rocksdb_per_core": ("Structured Streaming, RocksDB", "#f0883e", 5),
    "default_per_core": ("Structured Streaming, default store", "#f7c78f", 5),
}
"""The bars of a query: the side's name, its colour and how thick it is."""
FLINK_COLOUR, INK, PALE = "#8b1a3a", "#24292f", "#d8dee4"
WIDTH, LEFT, RIGHT, TOP, ROW_HEIGHT = 1000, 330, 70, 96, 32
LEAST, MOST = 1_000, 10_000_000
"""The ends of the axis: events a second and core."""


def main() -> None:
    rows = read_rows(map(Path, sys.argv[1:]))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(rows), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n{END}{after}", encoding="utf-8")


def read_rows(files: Iterable[Path]) -> list[Row]:
    """Return the row of each query; those of later files replace those of earlier ones."""
    found: dict[str, Row] = {}
    for file in files:
        results = json.loads(file.read_text(encoding="utf-8"))
        found |= {r["name"]: r for r in results["rows"] if r["suite"] == "nexmark"}
    return [found[name] for name in queries() if name in found]


def table(rows: list[Row]) -> str:
    """Return the figures as a table, and what they fall short of."""
    lines = [
        "| Query | Penstock | Flink 2.0 | of it | Structured Streaming: RocksDB, default store | of them |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        if "per_core" not in row:
            lines.append(f"| {row['name']} | {_why_not(row)} | | | | |")
            continue
        peer, ratio = f"cannot: {row.get('peer_cannot')}", ""
        if "rocksdb_per_core" in row:
            both = (row["rocksdb_per_core"], row["default_per_core"])
            ratios = (row["ratio_rocksdb"], row["ratio_default"])
            peer, ratio = _pair(*map(_thousands, both)), _pair(*map(_times, ratios))
        goal = row.get("flink_per_core")
        lines.append(
            f"| {row['name']} | {_thousands(row['per_core'])} | "
            f"{_thousands(goal) if goal else ''} | "
            f"{_times(row['ratio_flink']) if goal else ''} | {peer} | {ratio} |"
        )
    with_goal = [row for row in rows if "ratio_flink" in row]
    below = [row for row in with_goal if row["ratio_flink"] < 1]
    slower = [row for row in rows if min(_ratios(row), default=1) < 1]
    said = f"Flink's figure is reached by {len(with_goal) - len(below)} of {len(with_goal)} queries"
    if below:
        said += f", missed by {', '.join(row['name'] for row in below)}"
    if slower:
        said += f". Slower than Structured Streaming: {', '.join(row['name'] for row in slower)}"
    return "\n".join([*lines, "", f"{said}.", ""])


def _why_not(row: Row) -> str:
    return "failed" if "error" in row else "not measured"


def _ratios(row: Row) -> list[float]:
    return [row[key] for key in ("ratio_rocksdb", "ratio_default") if key in row]


def _pair(first: str, second: str) -> str:
    return first if first == second else f"{first} / {second}"


def _thousands(figure: float) -> str:
    """Return thousands with two or three digits that mean something."""
    thousands = figure / 1_000
    return f"{thousands:,.0f}" if thousands >= 10 else f"{thousands:.1f}"


def _times(ratio: float) -> str:
    return (
        f"{ratio:.0f}x"
        if ratio >= 10
        else f"{ratio:.1f}x"
        if ratio >= 1.05
        else f"{ratio:.2f}x"
    )


def draw(rows: list[Row]) -> str:
    """Return the picture: a group of bars per query on a logarithmic axis, and Flink's mark."""
    bottom = TOP + ROW_HEIGHT * len(rows)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" '
            f'width="{WIDTH}" height="{bottom + 34}" font-family="Helvetica, Arial, sans-serif" '
            f'font-size="12" fill="{INK}">'
        ),
        "<title>Nexmark: events a second and core of each query</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        (
            '<text x="16" y="28" font-size="17" font-weight="bold">'
            "Nexmark: events a second and core, on a logarithmic scale</text>"
        ),
        *_legend(),
    ]
    for power in range(round(log10(LEAST)), round(log10(MOST)) + 1):
        x = _place(10**power)
        parts.append(
            f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}" stroke="{PALE}"/>'
            f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{_axis(10**power)}</text>'
        )
    for number, row in enumerate(rows):
        parts += _query(row, TOP + number * ROW_HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts, x = [], 16
    for name, colour, thickness in SIDES.values():
        parts.append(
            f'<rect x="{x}" y="{56 - thickness / 2}" width="22" height="{thickness}" '
            f'fill="{colour}"/><text x="{x + 28}" y="60">{name}</text>'
        )
        x += 54 + round(6.4 * len(name))
    parts.append(
        f'<line x1="{x + 8}" y1="47" x2="{x + 8}" y2="65" stroke="{FLINK_COLOUR}" '
        f'stroke-width="3"/><text x="{x + 18}" y="60">Flink 2.0, as published for other '
        "hardware</text>"
    )
    return parts


def _query(row: Row, top: float) -> list[str]:
    said = (queries()[row["name"]].__doc__ or "").partition(".")[0].partition(":")[0]
    said = shorten(said, 44, placeholder=" …")
    middle = top + ROW_HEIGHT / 2
    parts = [
        (
            f'<text x="16" y="{middle + 1}" font-weight="bold">{row["name"]}</text>'
            f'<text x="46" y="{middle + 1}">{escape(said)}</text>'
        )
    ]
    y = top + 3.0
    for key, (_, colour, thickness) in SIDES.items():
        if key in row:
            width = _place(row[key]) - LEFT
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{thickness}" '
                f'fill="{colour}"/>'
            )
        y += thickness + 1
    if "per_core" in row:
        x = max(_place(row["per_core"]), _place(row.get("flink_per_core", LEAST))) + 6
        parts.append(f'<text x="{x:.1f}" y="{top + 13}">{_axis(row["per_core"])}</text>')
        if "rocksdb_per_core" not in row:
            parts.append(
                f'<text x="{LEFT + 4}" y="{top + 25}" font-size="10" fill="#6e7781">'
                "Structured Streaming has no such query</text>"
            )
    else:
        parts.append(f'<text x="{LEFT + 4}" y="{top + 13}">{_why_not(row)}</text>')
    if "flink_per_core" in row:
        x = _place(row["flink_per_core"])
        height = ROW_HEIGHT - 5 if "rocksdb_per_core" in row else 16
        parts.append(
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}" '
            f'stroke="{FLINK_COLOUR}" stroke-width="3"/>'
        )
    return parts


def _place(figure: float) -> float:
    share = (log10(max(figure, LEAST)) - log10(LEAST)) / (log10(MOST) - log10(LEAST))
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _axis(figure: float) -> str:
    if figure >= 1_000_000:
        return f"{figure / 1e6:.3g} M"
    return f"{figure / 1e3:.3g} k"


if __name__ == "__main__":
    main()
