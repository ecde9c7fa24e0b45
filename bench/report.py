"""Writes the measured numbers into the documents: no number stands there that no file backs.

Reads ``bench/results/<device>/<name>.json`` (lists of rows, see ``engine/bench/rows.py``),
replaces what stands between the two markers, one table a file, and draws plots beside the files.
``docs/numbers.md`` has all of them, the README those that people ask for first. Every table names
the commit, the date and the command that measured it.
"""

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from bench import pictures

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
FIRST = ("h200/decode-llama-3.1-8b-awq-r16", "h200/prefill-llama-3.1-8b-awq-r16",
         "h200/mixed-llama-3.1-8b-awq-r16")  # fmt: skip
DOCUMENTS: dict[str, Collection[str] | None] = {"README.md": FIRST, "docs/numbers.md": None}
BEGIN, END = "<!-- numbers: begin (make report) -->", "<!-- numbers: end -->"
HEADERS = ("what", "ours", "unit", "another engine", "hardware floor")
STEPS = ("sequences", "adapters", "ours, ms", "P99", "best other engine, ms", "ours to it",
         "floor, ms", "ours to floor")  # fmt: skip
Row = dict[str, Any]


class MarkersMissing(ValueError):
    """The document has no place for the numbers."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a document is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the documents")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    written = {}
    for name, only in DOCUMENTS.items():
        document = options.root / name
        tables = render(options.results, beside=document.parent, only=only)
        written[document] = insert(document.read_text("utf-8"), tables)
    stale = [path.name for path, text in written.items() if path.read_text("utf-8") != text]
    if options.check:
        return int(bool(stale))
    drawn = [svg for path, rows in _files(options.results) for svg in pictures.write(path, rows)]
    for path, text in written.items():
        path.write_text(text, "utf-8")
    print(f"rewritten: {', '.join(stale) or 'nothing'}; {len(drawn)} plots drawn")
    return 0


def insert(document: str, tables: str) -> str:
    """Put the tables between the markers. Raises MarkersMissing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MarkersMissing(f"the document needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def render(
    results: Path, *, beside: Path | None = None, only: Collection[str] | None = None
) -> str:
    """Markdown tables of every result below the folder, by device and file, in stable order.

    ``beside``: the folder of the document, for links to the plots; without it there are none.
    ``only``: the files that are meant, as ``device/name``.
    """
    sections = []
    for path, rows in _files(results):
        if only is not None and f"{path.parent.name}/{path.stem}" not in only:
            continue
        section = _section(path, rows)
        if section and beside is not None:
            section += _links(path, rows, beside)
        sections.append(section)
    return "\n\n".join(section for section in sections if section) or "Nothing measured yet."


def _files(results: Path) -> list[tuple[Path, list[Row]]]:
    paths = sorted(results.glob("*/*.json"))
    return [(path, json.loads(path.read_text("utf-8"))) for path in paths]


def _section(path: Path, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    first = rows[0]
    head = (
        f"**{first['device']}, {path.stem}** "
        f"(commit `{first['commit']}`, {first['date']}): `{first['command']}`"
    )
    if first["bench"] in pictures.IN_COLUMNS:
        table = _policies(rows)
    elif first["bench"] == "dashboard":
        table = _pages(rows)
    else:
        table = _steps(rows) if first["bench"] == "decode" and _has_steps(rows) else _plain(rows)
    return "\n".join([head, "", *table])


def _plain(rows: Sequence[Row]) -> list[str]:
    return [f"| {' | '.join(HEADERS)} |", "|---|---:|---|---:|---:|", *(_line(row) for row in rows)]


def _policies(rows: Sequence[Row]) -> list[str]:
    """One line a metric, one column a way to choose, or whatever the rows compare."""
    names = list(dict.fromkeys(row["op"] for row in rows))
    found = {(row["metric"], row["op"]): _number(row["value"]) for row in rows}
    units = {row["metric"]: row["unit"] for row in rows}
    what = rows[0]["model"]
    what += f", {rows[0]['adapters']:,} adapters" if rows[0]["adapters"] else ""
    lines = [f"| {what} | {' | '.join(names)} | unit |", "|---|" + "---:|" * len(names) + "---|"]
    for metric, unit in units.items():
        cells = [found.get((metric, name), "") for name in names]
        lines.append(f"| {metric} | {' | '.join(cells)} | {unit} |")
    return lines


def _pages(rows: Sequence[Row]) -> list[str]:
    """One line a page, two columns a database."""
    sizes = {row["format"]: row["context"] for row in rows}
    found = {(row["metric"], row["format"], row["op"]): _number(row["value"]) for row in rows}
    columns = [(name, quantile) for name in sizes for quantile in ("P50", "P95")]
    heads = [f"{name}, {sizes[name]:,} rows: {quantile}, ms" for name, quantile in columns]
    lines = [f"| {rows[0]['model']}: page | {' | '.join(heads)} |",
             "|---|" + "---:|" * len(heads)]  # fmt: skip
    for page in dict.fromkeys(row["metric"] for row in rows):
        cells = [found.get((page, *column), "") for column in columns]
        lines.append(f"| {page} | {' | '.join(cells)} |")
    return lines


def _has_steps(rows: Sequence[Row]) -> bool:
    return any(row["metric"] == "step" for row in rows)


def _steps(rows: Sequence[Row]) -> list[str]:
    """One line a mix: the mean by the peers' protocol, its P99, the peer, the floor."""
    lines = [f"| {' | '.join(STEPS)} |", "|" + "---:|" * len(STEPS)]
    slowest = {_mix(row): row["value"] for row in rows if row["metric"] == "step P99"}
    for row in rows:
        if row["metric"] != "step":
            continue
        late = _number(slowest[_mix(row)]) if _mix(row) in slowest else ""
        peer, floor = row.get("peer_value"), row.get("floor")
        cells = [
            str(row["batch"]), str(row["adapters"]), _number(row["value"]), late,
            f"{_number(peer)} ({row['peer']})" if peer else "",
            f"{row['value'] / peer:.2f}" if peer else "",
            _number(floor) if floor else "",
            f"{row['value'] / floor:.2f}" if floor else "",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _mix(row: Row) -> tuple[int, int]:
    return row["batch"], row["adapters"]


def _links(path: Path, rows: Sequence[Row], beside: Path) -> str:
    names = [name for name, _svg in pictures.pictures(path.stem, rows)]
    files = (os.path.relpath(path.with_name(name), beside) for name in names)
    links = [f"![{Path(file).stem}]({Path(file).as_posix()})" for file in files]
    return "\n\n" + "\n".join(links) if links else ""


def _line(row: Row) -> str:
    adapters = f", {row['adapters']} adapters" if row.get("adapters") else ""
    parts = (row["bench"], row.get("op", ""), row["model"], row["format"])
    named = " ".join(part for part in parts if part)
    peer = f"{_number(row['peer_value'])} ({row['peer']})" if row.get("peer_value") else ""
    floor = _number(row["floor"]) if row.get("floor") is not None else ""
    batch = f", batch {row['batch']}" if row["batch"] else ""
    what = f"{named}{batch}{adapters}: {row['metric']}"
    return f"| {what} | {_number(row['value'])} | {row['unit']} | {peer} | {floor} |"


def _number(value: float) -> str:
    """Three or four figures, without exponents."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
