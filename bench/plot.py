"""Small SVG line plots: both axes logarithmic or linear, a legend, no library.

A plot is written for eyes that may see it on white or on black: lines in mid tones, text in grey.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 62, 42
LEGEND = (0, 170, 395)  # where the columns of the legend begin; two rows above the plot
COLOURS = ("#2f7ed8", "#d9822b", "#4c9a5b", "#a154a1", "#b8433a", "#7a7a7a")
GREY = "#808080"


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    colour: int = 0  # of COLOURS


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    low: float
    high: float
    logarithmic: bool

    @classmethod
    def over(cls, label: str, values: Sequence[float], *, logarithmic: bool) -> "Axis":
        """From zero, or from and to whole powers of two."""
        if not logarithmic:
            return cls(label, 0.0, max(values) * 1.05 or 1.0, False)
        low = 2.0 ** math.floor(math.log2(min(values)))
        return cls(label, low, max(2.0 ** math.ceil(math.log2(max(values))), 2 * low), True)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            steps = round(math.log2(self.high / self.low))
            every = -(-steps // 9)
            return [self.low * 2.0**k for k in range(0, steps + 1, every)]
        step = 10.0 ** math.floor(math.log10(self.high / 2))
        step *= next(m for m in (1, 2, 5, 10) if self.high / (step * m) <= 6)
        return [step * k for k in range(int(self.high / step) + 1)]


def plot(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """An SVG document. Without points there is nothing to plot: ValueError."""
    points = [point for each in series for point in each.points]
    if not points:
        raise ValueError(f"{title}: no points")
    x = Axis.over(x_label, [p[0] for p in points], logarithmic=min(p[0] for p in points) > 0)
    y = Axis.over(y_label, [p[1] for p in points], logarithmic=min(p[1] for p in points) > 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        _text(WIDTH / 2, 18, title, anchor="middle", size=14),
        *_grid(x, y),
    ]
    for number, each in enumerate(series):
        parts += _line(each, x, y)
        parts += _legend(each, number)
    return "\n".join([*parts, "</svg>\n"])


def _grid(x: Axis, y: Axis) -> list[str]:
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value in x.ticks():
        at = _x(x, value)
        parts.append(_rule(at, TOP, at, low))
        parts.append(_text(at, low + 16, _number(value), anchor="middle"))
    for value in y.ticks():
        at = _y(y, value)
        parts.append(_rule(LEFT, at, right, at))
        parts.append(_text(LEFT - 6, at + 4, _number(value), anchor="end"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x.label, anchor="middle"))
    turned = f'transform="rotate(-90 16 {(TOP + low) / 2:.1f})"'
    parts.append(_text(16, (TOP + low) / 2, y.label, anchor="middle", more=turned))
    return parts


def _line(series: Series, x: Axis, y: Axis) -> list[str]:
    colour = COLOURS[series.colour % len(COLOURS)]
    dash = ' stroke-dasharray="5 4"' if series.dashed else ""
    at = [(_x(x, px), _y(y, py)) for px, py in sorted(series.points)]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in at)
    dots = [] if series.dashed else [
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in at
    ]  # fmt: skip
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    return [line, *dots]


def _legend(series: Series, number: int) -> list[str]:
    colour = COLOURS[series.colour % len(COLOURS)]
    dash = ' stroke-dasharray="5 4"' if series.dashed else ""
    left = LEFT + LEGEND[number % 3]
    at = 34 + 16 * (number // 3)
    return [
        f'<line x1="{left}" y1="{at - 4}" x2="{left + 22}" y2="{at - 4}" stroke="{colour}" '
        f'stroke-width="2"{dash}/>',
        _text(left + 28, at, series.name),
    ]


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GREY}" '
        'stroke-width="0.5" opacity="0.4"/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, more: str = ""
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{GREY}" {more}>{escape(text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"{value / 1000:g}k"
