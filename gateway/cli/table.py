"""Answers of the operator's commands: an aligned table for people, JSON for programs."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

Value = str | int | bool | datetime | None
Row = dict[str, Value]


def as_table(rows: Sequence[Row]) -> str:
    """Column names first. No rows: one line that says so."""
    if not rows:
        return "(none)"
    names = list(rows[0])
    lines = [[name.upper() for name in names]]
    lines += [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_json(answer: Row | Sequence[Row]) -> str:
    return msgspec.json.format(msgspec.json.encode(answer)).decode()


def _text(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    return str(value)
