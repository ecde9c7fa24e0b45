"""A time, as a person writes it at the command line."""

import argparse
from datetime import UTC, datetime

EARLIEST_YEAR, LATEST_YEAR = 2000, 2200


def moment(text: str) -> datetime:
    """An ISO time; UTC unless it names its zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no time like 2026-11-30 or 2026-11-30T12:00"
        ) from error
    if not EARLIEST_YEAR <= found.year <= LATEST_YEAR:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not from {EARLIEST_YEAR} to {LATEST_YEAR}"
        )
    return found if found.tzinfo else found.replace(tzinfo=UTC)
