"""Files of uploads on their way, on disk: parts that may come in any order and more than once.

    root/<upload id>/<file>.<part number>    a part, complete and checked
    root/<upload id>/whole/<file>            put together, as the validator reads it

A part is written beside its place and renamed, so that what is there is whole: a dropped
connection costs one part. Names of files come from a fixed set and ids from us, so nothing a
client says becomes a path. Blocking methods belong in a thread.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from gateway.errors import BodyTooLarge, InvalidRequest, ResourceNotFound

FILES = (CONFIG_FILE, WEIGHTS_FILE)
MAX_PARTS = 10_000
MAX_PART_BYTES = 64 << 20
MAX_CONFIG_BYTES = 1 << 20
COPY_BYTES = 4 << 20
GRAVE = "gone-"  # begins the name of a folder on its way out
_ID = re.compile(r"upl_[0-9a-f]{32}")
_PART = re.compile(r"(?P<file>[a-z_.]+)\.(?P<number>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Staging:
    root: Path
    max_bytes: int  # of one upload

    async def write_part(
        self, upload: str, file: str, number: int, body: AsyncIterator[bytes], sha256: str
    ) -> Part:
        """Raises InvalidRequest when the checksum does not fit, BodyTooLarge."""
        place = self._place(upload, file, number)
        draft = place.with_name(f".{uuid4().hex}")
        room = self.max_bytes - self.nbytes(upload, but=place.name)
        limit = min(MAX_CONFIG_BYTES if file == CONFIG_FILE else MAX_PART_BYTES, room)
        digest, size = hashlib.sha256(), 0
        try:
            with draft.open("xb") as out:
                async for piece in body:
                    size += len(piece)
                    if size > limit:
                        raise BodyTooLarge(f"{file}: this part may have {max(limit, 0)} bytes.")
                    digest.update(piece)
                    out.write(piece)
            if sha256 and digest.hexdigest() != sha256.lower():
                raise InvalidRequest(
                    f"{file}: part {number} hashes to {digest.hexdigest()}, not to what the"
                    " x-content-sha256 header says; send it again",
                    param="x-content-sha256",
                    code="checksum_mismatch",
                )
            if not place.parent.is_dir():
                raise ResourceNotFound("the upload was given up meanwhile")
            draft.replace(place)
            if self.nbytes(upload) > self.max_bytes:  # parts that came at once
                place.unlink(missing_ok=True)
                raise BodyTooLarge(f"{file}: the upload may have {self.max_bytes} bytes in all.")
        except FileNotFoundError as error:
            raise ResourceNotFound("the upload was given up meanwhile") from error
        finally:
            draft.unlink(missing_ok=True)
        return Part(number, size)

    def begin(self, upload: str) -> None:
        self._folder(upload).mkdir(parents=True, exist_ok=True)

    def parts(self, upload: str) -> dict[str, list[Part]]:
        found: dict[str, list[Part]] = {}
        folder = self._folder(upload)
        for path in folder.iterdir() if folder.is_dir() else ():
            match = _PART.fullmatch(path.name)
            if match and match["file"] in FILES:
                part = Part(int(match["number"]), path.stat().st_size)
                found.setdefault(match["file"], []).append(part)
        return {file: sorted(parts, key=lambda part: part.number) for file, parts in found.items()}

    def nbytes(self, upload: str, *, but: str = "") -> int:
        folder = self._folder(upload)
        paths = folder.iterdir() if folder.is_dir() else ()
        return sum(p.stat().st_size for p in paths if p.is_file() and p.name != but)

    def assemble(self, upload: str, sums: dict[str, str]) -> Path:
        """A directory with both files. ``sums``: sha256 of files, where the client told them.

        Raises InvalidRequest naming the file, and the part that is missing.
        """
        whole = self._folder(upload) / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir(parents=True)
        parts = self.parts(upload)
        for file in FILES:
            numbers = [part.number for part in parts.get(file, ())]
            if numbers != list(range(1, len(numbers) + 1)) or not numbers:
                missing = next(i for i in range(1, len(numbers) + 2) if i not in numbers)
                raise InvalidRequest(f"{file}: part {missing} is missing", param="files")
            found = self._join(upload, file, len(numbers), whole / file)
            if sums.get(file, found).lower() != found:
                raise InvalidRequest(
                    f"{file}: its parts hash to {found}", param="files", code="checksum_mismatch"
                )
        return whole

    def discard(self, upload: str) -> None:
        """Idempotent: nothing of it is left."""
        folder = self._folder(upload)
        grave = folder.with_name(f"{GRAVE}{uuid4().hex}")
        try:
            folder.rename(grave)
        except FileNotFoundError:
            return
        shutil.rmtree(grave, ignore_errors=True)

    def clear(self, known: Collection[str], *, older_than_s: float) -> int:
        """Delete what a killed process left: uploads that nobody knows, and half deleted ones."""
        cleared = 0
        for path in self.root.iterdir() if self.root.is_dir() else ():
            lost = _ID.fullmatch(path.name) and path.name not in known
            if (lost or path.name.startswith(GRAVE)) and _age(path) > older_than_s:
                shutil.rmtree(path, ignore_errors=True)
                cleared += 1
        return cleared

    def _join(self, upload: str, file: str, parts: int, target: Path) -> str:
        digest = hashlib.sha256()
        with target.open("xb") as out:
            for number in range(1, parts + 1):
                with self._place(upload, file, number).open("rb") as source:
                    while piece := source.read(COPY_BYTES):
                        digest.update(piece)
                        out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        return digest.hexdigest()

    def _folder(self, upload: str) -> Path:
        if not _ID.fullmatch(upload):
            raise ResourceNotFound("no such upload")
        return self.root / upload

    def _place(self, upload: str, file: str, number: int) -> Path:
        if file not in FILES:
            raise InvalidRequest(
                f"file {file[:80]!a}: only {' and '.join(FILES)} are taken", param="file"
            )
        if not 1 <= number <= MAX_PARTS:
            raise InvalidRequest(f"part {number}: from 1 to {MAX_PARTS}", param="part")
        return self._folder(upload) / f"{file}.{number}"


def _age(path: Path) -> float:
    """Seconds since something was put in or taken out; 0 when it has just gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
