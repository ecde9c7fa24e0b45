"""Many rows for SQLite in one statement of one parameter, for the settler.

For each row of ``executemany`` the driver lets go of the interpreter and waits for it again, which
under load is hundreds of fights with the loop. Here SQLite takes the rows out of JSON by itself,
in one step. The statement's text is the same however many rows there are.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import orjson


def insert_of(table: str, columns: Sequence[str], conflict: str) -> str:
    """``conflict``: what follows ON CONFLICT. Its parameter is what ``packed`` makes."""
    fields = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(columns)))
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {fields}"  # noqa: S608
        f" FROM json_each(?) WHERE true ON CONFLICT {conflict}"
    )


def packed(rows: Sequence[Sequence[Any]]) -> str:
    return orjson.dumps(rows).decode()


def moment_text(moment: datetime) -> str:
    """As SQLAlchemy keeps a point in time there."""
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


def day_text(day: date) -> str:
    return day.isoformat()
