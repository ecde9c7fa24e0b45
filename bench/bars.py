"""SVG bar charts for what is no function of one number: a group of bars for each measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.plot import COLOURS, GREY, WIDTH

LETTER = 6.4  # width of one, about
VALUES = 70  # right of the longest bar
TOP, BAR, GAP = 48, 13, 10


@dataclass(frozen=True, slots=True)
class Group:
    """One measurement; None where there is no such value."""

    label: str
    values: tuple[float | None, ...]  # as many as the chart has names


def bars(title: str, unit: str, names: Sequence[str], groups: Sequence[Group]) -> str:
    """An SVG document. Without a value above zero there is nothing to draw: ValueError."""
    most = max((v for group in groups for v in group.values if v is not None), default=0.0)
    if most <= 0:
        raise ValueError(f"{title}: no values")
    left = 16 + LETTER * max(len(group.label) for group in groups)
    shown = [n for n in range(len(names)) if any(g.values[n] is not None for g in groups)]
    parts, at = [], float(TOP)
    for group in groups:
        drawn, at = _group(group, shown, left, (WIDTH - left - VALUES) / most, at)
        parts += drawn
    head = [_text(WIDTH / 2, 18, f"{title}, {unit}", anchor="middle", size=14)]
    place = left
    for number in shown if len(shown) > 1 else ():
        head += [_bar(place, 28, 10, number), _text(place + 16, 37, names[number])]
        place += 40 + LETTER * len(names[number])
    opened = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {at:.0f}" '
        'font-family="sans-serif" font-size="12">'
    )
    return "\n".join([opened, *head, *parts, "</svg>\n"])


def _group(
    group: Group, shown: Sequence[int], left: float, scale: float, top: float
) -> tuple[list[str], float]:
    """Its elements, and where the next begins."""
    parts, at = [], top
    for number in shown:
        value = group.values[number]
        if value is None:
            continue
        width = value * scale
        parts += [
            _bar(left, at, max(width, 1.0), number),
            _text(left + width + 5, at + BAR - 3, _figures(value)),
        ]
        at += BAR
    middle = (top + at) / 2 + 4
    return [_text(left - 8, middle, group.label, anchor="end"), *parts], at + GAP


def _bar(left: float, top: float, width: float, number: int) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BAR - 2}" '
        f'fill="{COLOURS[number % len(COLOURS)]}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{GREY}">{escape(text)}</text>'
    )


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
