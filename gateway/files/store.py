"""Files on disk, one a file, under ids of ours: nothing a client says becomes a path.

    root/<file id>       whole, never changed
    root/.<random>       on its way

A file is written beside its place, synced and renamed, so that what has its name is whole. The row
that names it is written afterwards: a crash between leaves a file that the sweep takes away.
Blocking methods belong in a thread. Several gateways share one directory.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from gateway.errors import ResourceNotFound
from gateway.ids import new_id

COPY_BYTES = 4 << 20
_ID = re.compile(r"file-[0-9a-f]{32}")


def new_file_id() -> str:
    """As OpenAI writes them, with a dash."""
    return new_id("file").replace("_", "-", 1)


def is_file_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class FileStore:
    root: Path

    def put(self, file: str, source: BinaryIO) -> int:
        """Copy it here to the end. Returns its bytes."""
        with self.writing(file) as out:
            while piece := source.read(COPY_BYTES):
                out.write(piece)
            return out.tell()

    @contextmanager
    def writing(self, file: str) -> Iterator[BinaryIO]:
        """A file that is there once the block ends, and not at all if it raises."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.root / f".{uuid4().hex}"
        try:
            with draft.open("xb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            draft.replace(self.path(file))
            _sync(self.root)
        finally:
            draft.unlink(missing_ok=True)

    def path(self, file: str) -> Path:
        """Raises ResourceNotFound for what cannot be an id."""
        if not is_file_id(file):
            raise ResourceNotFound("no such file")
        return self.root / file

    def open(self, file: str) -> BinaryIO:
        """Raises ResourceNotFound."""
        try:
            return self.path(file).open("rb")
        except FileNotFoundError as error:
            raise ResourceNotFound("no such file") from error

    def discard(self, file: str) -> None:
        self.path(file).unlink(missing_ok=True)

    def settled(self, older_than_s: float) -> list[str]:
        """Files that have been there so long. Drafts that nobody went on with are deleted."""
        limit = time.time() - older_than_s
        found = []
        for path in self.root.iterdir() if self.root.is_dir() else ():
            try:
                old = path.stat().st_mtime < limit
            except FileNotFoundError:  # another gateway's sweep
                continue
            if old and path.name.startswith("."):
                path.unlink(missing_ok=True)
            elif old and is_file_id(path.name):
                found.append(path.name)
        return found


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
