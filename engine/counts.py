"""The engine's own record of what every request cost, kept across restarts.

One JSON line when a request starts to compute and one when it ends, appended to a file and
handed to the operating system once per pass: a killed engine loses nothing it has said. Two
generations bound it: when the newer is full it becomes the older, and the older is dropped.
Belongs to the engine loop's thread.
"""

import logging
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import msgspec

from engine.protocol import Counts

KEPT = 100_000  # requests per generation

log = logging.getLogger(__name__)


class CountRecord:
    def __init__(self, directory: Path | None, *, kept: int = KEPT) -> None:
        """``directory`` is made if need be; None keeps the record in memory. Raises OSError."""
        self._kept = kept
        self._newer: dict[str, Counts] = {}
        self._older: dict[str, Counts] = {}
        self._path = directory / "counts.jsonl" if directory else None
        self._file: TextIO | None = None
        self._encode = msgspec.json.Encoder().encode
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._older = _read(self._path.with_suffix(".old"))
            self._newer = _read(self._path)
            self._file = _append(self._path)

    def write(self, counts: Counts) -> None:
        """Record the latest about a request. It is on its way to disk after ``flush``."""
        if len(self._newer) >= self._kept and counts.request not in self._newer:
            self._rotate()
        self._newer[counts.request] = counts
        if self._file:
            try:  # a full buffer goes to the disk from here
                self._file.write(self._encode(counts).decode() + "\n")
            except OSError as error:
                self._give_up(error)

    def read(self, request: str) -> Counts:
        """All zero when unknown."""
        return self._newer.get(request) or self._older.get(request) or Counts(request)

    def page(self, start: int, most: int) -> list[Counts]:
        """Some of what is kept, oldest first; a request in both generations comes once."""
        older = (counts for name, counts in self._older.items() if name not in self._newer)
        return list(islice(chain(older, self._newer.values()), start, start + most))

    def flush(self) -> None:
        if self._file:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Serving goes on: the gateways' own logs are what is billed by."""
        log.error("token counts are no longer recorded in %s: %s", self._path, error)
        self._file = None

    def close(self) -> None:
        self.flush()
        if self._file:
            self._file.close()

    def _rotate(self) -> None:
        self._older, self._newer = self._newer, {}
        if self._file and self._path:
            self.close()
            self._path.replace(self._path.with_suffix(".old"))
            self._file = _append(self._path)


def _append(path: Path) -> TextIO:
    file = path.open("a", encoding="utf-8", buffering=1 << 16)
    file.write("\n" if path.stat().st_size else "")  # a torn last line stays alone
    return file


def _read(path: Path) -> dict[str, Counts]:
    """The last line about each request. Lines torn by a crash are passed over."""
    known: dict[str, Counts] = {}
    decoder = msgspec.json.Decoder(Counts)
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            counts = decoder.decode(line)
        except msgspec.DecodeError:
            continue
        known[counts.request] = counts
    return known
