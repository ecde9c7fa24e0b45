"""Which plots the result files give: decode steps and linears by number of rows, others as bars."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.bars import Group, bars
from bench.plot import Series, plot

Row = dict[str, Any]
OURS, PEER, FLOOR = "loratorio", "best other engine", "floor"
SHOWN = (0, 64)  # numbers of adapters of the decode plot
IN_COLUMNS = (
    "routing",
    "narrow_adapters",
    "start",
)  # files whose table has a column for each choice
# What tells one row of a file from another, as it is said beside a bar
TELLING = {
    "bench": "{}", "op": "{}", "metric": "{}", "format": "{}", "batch": "batch {}",
    "context": "context {}", "adapters": "adapters {}",
}  # fmt: skip


def pictures(stem: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(file name, SVG) of the plots that one result file gives."""
    bench = rows[0]["bench"] if rows else ""
    if bench == "decode":
        yield f"{stem}.svg", _decode(rows)
    elif bench in IN_COLUMNS:
        return  # the table says it: each metric has a unit of its own
    elif bench == "linear":
        for op in dict.fromkeys(row["op"] for row in rows):
            yield f"{stem}-{op}.svg", _linear(op, [row for row in rows if row["op"] == op])
    else:
        units = dict.fromkeys(row["unit"] for row in rows)
        alike = {unit: [row for row in rows if row["unit"] == unit] for unit in units}
        several = {unit: chosen for unit, chosen in alike.items() if len(chosen) > 1}
        for unit, chosen in several.items():
            named = f"{stem}-{_slug(unit)}" if len(several) > 1 else stem
            yield f"{named}.svg", _bars(stem, chosen)


def write(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Put the plots of a result file beside it."""
    written = []
    for name, svg in pictures(path.stem, rows):
        file = path.with_name(name)
        file.write_text(svg, "utf-8")
        written.append(file)
    return written


def _decode(rows: Sequence[Row]) -> str:
    steps = [row for row in rows if row["metric"] == "step"]
    series = []
    for colour, adapters in enumerate(SHOWN):
        chosen = [row for row in steps if row["adapters"] == adapters]
        named = f", {adapters} adapters" if adapters else ", base"
        series += _three(chosen, named, colour)
    if not series:  # other mixes were measured: all of them in one line
        series = _three(steps, "", 0)
    first = rows[0]
    title = f"Decode step, {first['model']} {first['format']}, {first['device']}"
    return plot(title, "sequences", first["unit"], series)


def _linear(op: str, rows: Sequence[Row]) -> str:
    first = rows[0]
    title = f"{op}, {first['model']} {first['format']}, {first['device']}"
    series = []
    for colour, metric in enumerate(dict.fromkeys(row["metric"] for row in rows)):
        chosen = [row for row in rows if row["metric"] == metric]
        if colour:  # another way to take the time of the same: one floor will do
            chosen = [{**row, "floor": None} for row in chosen]
        series += _three(chosen, metric.removeprefix("time"), colour)
    return plot(title, "rows", first["unit"], series)


def _bars(stem: str, rows: Sequence[Row]) -> str:
    telling = [key for key in TELLING if len({str(row.get(key)) for row in rows}) > 1]

    def label(row: Row) -> str:
        return ", ".join(TELLING[key].format(row[key]) for key in telling if row.get(key))

    groups = [
        Group(label(row) or "base", (row["value"], row.get("peer_value"), row.get("floor")))
        for row in rows
    ]
    title = f"{stem}, {rows[0]['device'].partition(',')[0]}"
    peers = {row["peer"] for row in rows if row.get("peer_value")}
    peer = peers.pop() if len(peers) == 1 else PEER
    return bars(title, rows[0]["unit"], ("measured", peer, FLOOR), groups)


def _slug(unit: str) -> str:
    return unit.replace("/", "-per-").replace(" ", "-").lower()


def _three(rows: Sequence[Row], named: str, colour: int) -> list[Series]:
    """Ours, the peer's and the floor, where there are any."""

    def points(key: str) -> list[tuple[float, float]]:
        return [(row["batch"], row[key]) for row in rows if row.get(key)]

    ours = Series(f"{OURS}{named}", points("value"), colour=3 * colour)
    peer = Series(f"{PEER}{named}", points("peer_value"), colour=3 * colour + 1)
    floor = Series(f"{FLOOR}{named}", points("floor"), colour=3 * colour + 2, dashed=True)
    return [each for each in (ours, peer, floor) if each.points]
