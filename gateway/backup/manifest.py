"""What a backup holds: every file with its size and digest, written last.

A folder without a manifest is a backup that was not finished.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec

FILE = "manifest.json"
FORMAT = 1
BLOCK = 1 << 20


class BackupInvalid(ValueError):
    """Not a backup, or not whole. The message says what is wrong with which file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    path: str  # within the backup
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    made_at: datetime
    release: str  # of the program that made it
    database: str | None  # "sqlite" or "postgresql"; None: it is not in here
    schema: str | None  # the revision it was at
    adapter_store: str | None  # where adapters are, if not in here
    pieces: tuple[Piece, ...]
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        text = msgspec.json.format(msgspec.json.encode(self))
        unfinished = folder / f".{FILE}"
        unfinished.write_bytes(text + b"\n")
        unfinished.rename(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises BackupInvalid."""
        try:
            found = msgspec.json.decode((folder / FILE).read_bytes(), type=cls)
        except FileNotFoundError as error:
            raise BackupInvalid(f"{folder} has no {FILE}: it is no finished backup") from error
        except (OSError, msgspec.DecodeError) as error:
            raise BackupInvalid(f"{folder / FILE} cannot be read: {error}") from error
        if found.format != FORMAT:
            raise BackupInvalid(f"{folder} has format {found.format}; this release reads {FORMAT}")
        return found

    def check(self, folder: Path) -> None:
        """Every file is there and as it was. Raises BackupInvalid."""
        for piece in self.pieces:
            path = folder / piece.path
            if not path.resolve().is_relative_to(folder.resolve()):
                raise BackupInvalid(f"{FILE} names {piece.path!r}, outside the backup")
            try:
                now = measure(folder, path)
            except OSError as error:
                raise BackupInvalid(f"{path} cannot be read: {error}") from error
            if now != piece:
                raise BackupInvalid(f"{path} is not as it was backed up")


def measure(folder: Path, path: Path) -> Piece:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return Piece(path=str(path.relative_to(folder)), size=size, sha256=digest.hexdigest())


def pieces(folder: Path) -> Iterator[Piece]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield measure(folder, path)
