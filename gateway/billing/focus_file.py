"""Rows of FOCUS into a file: CSV, or Parquet with pyarrow. The same rows make the same bytes."""

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from gateway.billing.focus import DECIMALS, PLACES, TIMES, VERSION, Cell, Column, Row
from gateway.errors import InvalidRequest

DIGITS = 38  # of a decimal in Parquet, the most there are
TIME = "%Y-%m-%dT%H:%M:%SZ"


class FocusFile(Protocol):
    """A context: the file is whole when it ends without an error."""

    def __enter__(self) -> "FocusFile": ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def write(self, rows: Sequence[Row]) -> None: ...


class CsvFile:
    """RFC 4180; what is null is empty."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._text = io.TextIOWrapper(self._file, "utf-8", newline="")
        self._writer = csv.writer(self._text)
        self._writer.writerow(Column)

    def __enter__(self) -> "CsvFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._text.close()

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.writerows([[as_text(cell) for cell in row] for row in rows])


class ParquetFile:
    """Decimals of 38 digits, times in UTC. Raises InvalidRequest where pyarrow is missing."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise InvalidRequest(
                "focus-parquet needs pyarrow: pip install 'loratorio[parquet]'", param="format"
            ) from error
        self._arrow = pyarrow
        self._schema = pyarrow.schema(
            [pyarrow.field(column, self._type(column)) for column in Column],
            metadata={"FOCUS": VERSION},
        )
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()

    def write(self, rows: Sequence[Row]) -> None:
        if rows:
            arrays = [
                self._arrow.array(cells, self._type(column))
                for column, cells in zip(Column, zip(*rows, strict=True), strict=True)
            ]
            self._writer.write_table(self._arrow.table(arrays, schema=self._schema))

    def _type(self, column: Column) -> Any:
        if column in DECIMALS:
            return self._arrow.decimal128(DIGITS, PLACES)
        return self._arrow.timestamp("us", tz="UTC") if column in TIMES else self._arrow.string()


FORMATS: dict[str, tuple[str, type[CsvFile] | type[ParquetFile]]] = {
    "focus-csv": ("csv", CsvFile),
    "focus-parquet": ("parquet", ParquetFile),
}


def as_text(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case datetime():
            return cell.strftime(TIME)
        case Decimal():
            number = plain(cell)
            return number if "." in number else f"{number}.0"  # else readers take it for integers
    return cell


def plain(amount: Decimal) -> str:
    """Exactly, without exponent or trailing zeros; "0" without a sign."""
    text = f"{amount:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text
