"""Files of uploads on their way, in parts that may come in any order, more than once, and to any
program that shares the store.

    root/<upload id>/<file>.<part number>

A part is whole or not there. Names of files and ids of uploads are checked by the caller: nothing
a client says becomes a path. All methods block.
"""

import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from adapters.errors import UploadGone

COPY_BYTES = 4 << 20
GRAVE = "gone-"  # begins the name of a folder on its way out
UPLOAD = "upl_"  # begins every id


class Parts(Protocol):
    def begin(self, upload: str) -> None: ...

    def draft(self, upload: str) -> Path:
        """Where a part may be written before it is put. Raises UploadGone."""
        ...

    def put(self, upload: str, name: str, draft: Path) -> None:
        """The draft is the part from now on. Raises UploadGone, or StoreUnavailable."""
        ...

    def sizes(self, upload: str) -> dict[str, int]:
        """Bytes by name. Raises StoreUnavailable."""
        ...

    def read(self, upload: str, name: str) -> Iterator[bytes]:
        """Raises UploadGone, or StoreUnavailable."""
        ...

    def remove(self, upload: str, name: str) -> None: ...

    def discard(self, upload: str) -> None:
        """Idempotent: nothing of it is left."""
        ...

    def clear(self, known: Collection[str], *, older_than_s: float) -> int:
        """Delete uploads that nobody knows; how many there were."""
        ...


class DirectoryParts:
    """In a directory, which programs may share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def begin(self, upload: str) -> None:
        (self._root / upload).mkdir(parents=True, exist_ok=True)

    def draft(self, upload: str) -> Path:
        if not (self._root / upload).is_dir():
            raise UploadGone(upload)
        return self._root / upload / f".{uuid4().hex}"

    def put(self, upload: str, name: str, draft: Path) -> None:
        try:
            draft.replace(self._root / upload / name)
        except FileNotFoundError as error:
            raise UploadGone(upload) from error

    def sizes(self, upload: str) -> dict[str, int]:
        """What is discarded while we look is not there."""
        found: dict[str, int] = {}
        with suppress(FileNotFoundError), os.scandir(self._root / upload) as entries:
            for entry in entries:
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
        return found

    def read(self, upload: str, name: str) -> Iterator[bytes]:
        try:
            with (self._root / upload / name).open("rb") as source:
                while piece := source.read(COPY_BYTES):
                    yield piece
        except FileNotFoundError as error:
            raise UploadGone(upload) from error

    def remove(self, upload: str, name: str) -> None:
        (self._root / upload / name).unlink(missing_ok=True)

    def discard(self, upload: str) -> None:
        grave = self._root / f"{GRAVE}{uuid4().hex}"
        try:
            (self._root / upload).rename(grave)
        except FileNotFoundError:
            return
        shutil.rmtree(grave, ignore_errors=True)

    def clear(self, known: Collection[str], *, older_than_s: float) -> int:
        """And what a killed process half deleted."""
        cleared = 0
        for path in self._root.iterdir() if self._root.is_dir() else ():
            lost = path.name.startswith(UPLOAD) and path.name not in known
            if (lost or path.name.startswith((GRAVE, "."))) and _age(path) > older_than_s:
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True) if not path.is_dir() else None
                cleared += 1
        return cleared


def _age(path: Path) -> float:
    """Seconds since something was put in or taken out; 0 when it has just gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
