"""The usage log on disk: numbered segments of framed records, appended to by one process.

A frame is the payload's length and CRC-32 (little-endian, 4 bytes each) and a MessagePack record.
A crash can only tear the last frame of a segment, and every start begins another segment, so a
reader takes each segment up to the first frame that is not whole.
"""

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.config import ConfigError
from gateway.ids import new_id
from gateway.usage.record import Record

HEADER_BYTES = 8
MAX_RECORD_BYTES = 1 << 20

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


@dataclass(frozen=True, slots=True, order=True)
class Position:
    segment: int
    offset: int  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    record: Record
    start: Position
    end: Position


def frame(record: Record) -> bytes:
    payload = _encode(record)
    crc = zlib.crc32(payload)
    return len(payload).to_bytes(4, "little") + crc.to_bytes(4, "little") + payload


class UsageLog:
    """A directory of segments. ``id`` names this log in the database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.id = _identity(folder / "id")

    def segments(self) -> list[int]:
        """Oldest first."""
        return sorted(int(path.stem) for path in self.folder.glob("*.log"))

    def path(self, segment: int) -> Path:
        return self.folder / f"{segment:012d}.log"

    def lock(self) -> "LogLock | None":
        """The right to write, until it is released or the process dies. None: it is taken."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return LogLock(descriptor)

    def read(self, start: Position, most: int) -> list[Entry]:
        """Up to ``most`` records from there on, over segments; those still torn are left out."""
        entries: list[Entry] = []
        # Listed first: a segment that has a successor is not written to any more.
        for segment in self.segments():
            if segment < start.segment:
                continue
            offset = start.offset if segment == start.segment else 0
            for entry in self._read_segment(segment, offset):
                entries.append(entry)
                if len(entries) == most:
                    return entries
        return entries

    def drop_before(self, segment: int) -> None:
        for old in self.segments():
            if old < segment:
                self.path(old).unlink(missing_ok=True)

    def _read_segment(self, segment: int, offset: int) -> Iterator[Entry]:
        try:
            stream = self.path(segment).open("rb")
        except FileNotFoundError:  # settled and dropped meanwhile
            return
        with stream:
            stream.seek(offset)
            while record := _read_frame(stream.read):
                end = stream.tell()
                yield Entry(record, Position(segment, offset), Position(segment, end))
                offset = end


class LogLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def _read_frame(read: Callable[[int], bytes]) -> Record | None:
    header = read(HEADER_BYTES)
    size = int.from_bytes(header[:4], "little")
    if len(header) < HEADER_BYTES or not 0 < size <= MAX_RECORD_BYTES:
        return None
    payload = read(size)
    if len(payload) < size or zlib.crc32(payload) != int.from_bytes(header[4:], "little"):
        return None
    try:
        record: Record = _decode(payload)
    except msgspec.DecodeError as error:  # whole, but not ours: never skip it silently
        raise ConfigError(f"the usage log holds a record of another version: {error}") from error
    return record


def _identity(file: Path) -> str:
    try:
        with file.open("x") as stream:
            stream.write(new_id("log"))
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        pass
    identity = file.read_text().strip()
    if not identity:  # a crash between making and writing it: nothing was ever logged under it
        file.unlink()
        return _identity(file)
    return identity
