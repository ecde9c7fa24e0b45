"""Writes the measured numbers into README.md: no number stands there that no file backs.

Reads ``bench/results/<device>/<name>.json`` (lists of rows, see ``engine/bench/rows.py``) and
replaces what stands between the two markers, one table a device. Every table names the commit,
the date and the command that measured it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- numbers: begin (make report) -->", "<!-- numbers: end -->"
HEADERS = ("what", "ours", "unit", "another engine", "hardware floor")
Row = dict[str, Any]


class MarkersMissing(ValueError):
    """The document has no place for the numbers."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if README.md is out of date")
    check = parser.parse_args(arguments).check
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    fresh = insert(text, render(ROOT / "bench" / "results"))
    if check:
        return int(fresh != text)
    readme.write_text(fresh, "utf-8")
    print("README.md is up to date" if fresh == text else "README.md rewritten")
    return 0


def insert(document: str, tables: str) -> str:
    """Put the tables between the markers. Raises MarkersMissing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MarkersMissing(f"the document needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def render(results: Path) -> str:
    """Markdown tables of every result below the folder, by device and file, in stable order."""
    files = sorted(results.glob("*/*.json"))
    sections = [_section(path, json.loads(path.read_text("utf-8"))) for path in files]
    return "\n\n".join(section for section in sections if section) or "Nothing measured yet."


def _section(path: Path, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    first = rows[0]
    lines = [
        f"**{first['device']}, {path.stem}** "
        f"(commit `{first['commit']}`, {first['date']}): `{first['command']}`",
        "",
        f"| {' | '.join(HEADERS)} |",
        "|---|---:|---|---:|---:|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    adapters = f", {row['adapters']} adapters" if row.get("adapters") else ""
    parts = (row["bench"], row.get("op", ""), row["model"], row["format"])
    named = " ".join(part for part in parts if part)
    peer = f"{_number(row['peer_value'])} ({row['peer']})" if row.get("peer_value") else ""
    floor = _number(row["floor"]) if row.get("floor") is not None else ""
    what = f"{named}, batch {row['batch']}{adapters}: {row['metric']}"
    return f"| {what} | {_number(row['value'])} | {row['unit']} | {peer} | {floor} |"


def _number(value: float) -> str:
    """Three or four figures, without exponents."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
