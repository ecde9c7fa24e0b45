"""Numbers and times as people read them. Everything comes in as integers and is never rounded
before it is shown; where a short form is shown the exact one stands beside it in ``title``."""

from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from zoneinfo import ZoneInfo

NANO = Decimal(10**9)
CENT, MILL = Decimal("0.01"), Decimal("0.0001")
UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
DASH = "–"


def usd(nano: int | None) -> str:
    """Dollars to the cent; below a dollar with two digits that say something, down to a nano."""
    if nano is None:
        return DASH
    dollars = Decimal(nano) / NANO
    if nano == 0 or abs(dollars) >= 1:
        return _signed(dollars.quantize(CENT, ROUND_HALF_EVEN))
    if abs(dollars) >= MILL:
        return _signed(dollars.quantize(MILL, ROUND_HALF_EVEN))
    return _signed(dollars.quantize(Decimal("1e-9")).normalize())


def exact_usd(nano: int | None) -> str:
    return DASH if nano is None else _signed(Decimal(nano) / NANO)


def _signed(dollars: Decimal) -> str:
    return f"{'−' if dollars < 0 else ''}${abs(dollars):,f}"


def count(number: int | None) -> str:
    """All digits, in groups."""
    return DASH if number is None else f"{number:,}"


def short(number: int | None) -> str:
    """Three digits and a unit: 12.3M."""
    if number is None:
        return DASH
    for size, unit in UNITS:
        if abs(number) >= size * 0.9995:
            value = Decimal(number) / size
            places = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{places}f}{unit}"
    return str(number)


def size(nbytes: int) -> str:
    """Of memory, in powers of 1024."""
    amount, units = float(nbytes), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.1f} {units[0]}" if units[0] != "B" else f"{nbytes} B"


def share(part: int, whole: int) -> str:
    """In percent; one that is not 0 is never shown as 0."""
    if not whole:
        return DASH
    percent = Decimal(part) * 100 / whole
    if 0 < percent < Decimal("0.1"):
        return "<0.1%"
    return f"{percent:.1f}%"


def change(now: int, before: int) -> str:
    """Against the same time before: +12%."""
    if before <= 0:  # corrections may take off more than was spent
        return ""
    percent = round((Decimal(now) - before) * 100 / before)
    if abs(percent) >= 1000:
        return f"×{Decimal(now) / before:.0f}"
    return f"{percent:+d}%".replace("-", "−")


def seconds(value: float | None) -> str:
    """A duration as it was measured: 34 ms, 1.20 s."""
    if value is None:
        return DASH
    if value < 0.1:
        return f"{value * 1000:.1f} ms"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def span(delta: timedelta | float) -> str:
    """A wait: 3 h 20 min."""
    left = int(delta.total_seconds() if isinstance(delta, timedelta) else delta)
    parts: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def moment(time: datetime | None, zone: ZoneInfo) -> str:
    return DASH if time is None else time.astimezone(zone).strftime("%Y-%m-%d %H:%M")


def instant(time: datetime, zone: ZoneInfo) -> str:
    """To the second."""
    return time.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def stamp(time: datetime) -> str:
    """For the ``datetime`` of a ``<time>``."""
    return time.isoformat(timespec="seconds")
