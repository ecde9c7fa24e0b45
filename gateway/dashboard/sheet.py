"""Tables as files that spreadsheets open."""

import csv
import io
from collections.abc import Iterable, Sequence

from starlette.responses import Response

# Spreadsheets of some languages take the wide forms as well.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def csv_answer(name: str, rows: Iterable[Sequence[object]]) -> Response:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return Response(
        file.getvalue().encode(),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}.csv"'},
    )


def _cell(value: object) -> object:
    """A tenant chooses names; a spreadsheet must not compute them."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value
