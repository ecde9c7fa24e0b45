"""Files of uploads on their way: parts that may come in any order, more than once, to any gateway.

    local/<upload id>/whole/<file>           put together, as the validator reads it

Where the parts are is ``adapters.parts``: a directory, or the bucket that keeps the adapters. A
part is put there once it is complete and checked, so a dropped connection costs one part. Names of
files come from a fixed set and ids from us, so nothing a client says becomes a path. Blocking
methods belong in a thread.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.errors import StoreUnavailable, UploadGone
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE
from adapters.parts import DirectoryParts, Parts
from gateway.errors import BodyTooLarge, InvalidRequest, ResourceNotFound, Unavailable

FILES = (CONFIG_FILE, WEIGHTS_FILE)
MAX_PARTS = 10_000
MAX_PART_BYTES = 64 << 20
MAX_CONFIG_BYTES = 1 << 20
_ID = re.compile(r"upl_[0-9a-f]{32}")
_PART = re.compile(r"(?P<file>[a-z_.]+)\.(?P<number>\d{1,5})")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Staging:
    local: Path  # on this machine
    shared: Parts
    max_bytes: int  # of one upload

    async def write_part(
        self,
        upload: str,
        file: str,
        number: int,
        body: AsyncIterator[bytes],
        *,
        sha256: str = "",
        room: int | None = None,
    ) -> Part:
        """``room``: bytes the upload may have in all, if that is less than any may.

        Raises InvalidRequest when the checksum does not fit, BodyTooLarge, Unavailable.
        """
        name = _name(upload, file, number)
        most = self.max_bytes if room is None else min(self.max_bytes, room)
        with _named_failures():
            left = most - await asyncio.to_thread(self.nbytes, upload, but=name)
            limit = min(MAX_CONFIG_BYTES if file == CONFIG_FILE else MAX_PART_BYTES, left)
            return await self._write((upload, file, number), body, sha256, limit)

    async def _write(
        self, place: tuple[str, str, int], body: AsyncIterator[bytes], sha256: str, limit: int
    ) -> Part:
        upload, file, number = place
        digest, size = hashlib.sha256(), 0
        draft = self.shared.draft(upload)
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
            await asyncio.to_thread(self._put, upload, f"{file}.{number}", draft)
        finally:
            draft.unlink(missing_ok=True)
        return Part(number, size)

    def _put(self, upload: str, name: str, draft: Path) -> None:
        self.shared.put(upload, name, draft)
        if self.nbytes(upload) > self.max_bytes:  # parts that came at once
            self.shared.remove(upload, name)
            raise BodyTooLarge(f"{name}: the upload may have {self.max_bytes} bytes in all.")

    def begin(self, upload: str) -> None:
        with _named_failures():
            self.shared.begin(_checked(upload))

    def parts(self, upload: str) -> dict[str, list[Part]]:
        found: dict[str, list[Part]] = {}
        with _named_failures():
            sizes = self.shared.sizes(_checked(upload))
        for name, nbytes in sizes.items():
            match = _PART.fullmatch(name)
            if match and match["file"] in FILES:
                found.setdefault(match["file"], []).append(Part(int(match["number"]), nbytes))
        return {file: sorted(parts, key=lambda part: part.number) for file, parts in found.items()}

    def nbytes(self, upload: str, *, but: str = "") -> int:
        sizes = self.shared.sizes(_checked(upload))
        return sum(nbytes for name, nbytes in sizes.items() if name != but)

    def assemble(self, upload: str, sums: dict[str, str]) -> Path:
        """A directory with both files. ``sums``: sha256 of files, where the client told them.

        Raises InvalidRequest naming the file, and the part that is missing; Unavailable.
        """
        with _named_failures():
            return self._assemble(upload, sums)

    def _assemble(self, upload: str, sums: dict[str, str]) -> Path:
        whole = self.local / _checked(upload) / "whole"
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
        """Idempotent: nothing of it is left; ``clear`` comes back to what cannot be reached now."""
        try:
            DirectoryParts(self.local).discard(_checked(upload))
            self.shared.discard(upload)
        except (StoreUnavailable, OSError) as error:
            log.warning("parts of %s are left behind for now: %s", upload, error)

    def clear(self, known: Collection[str], *, older_than_s: float) -> int:
        """Delete what a killed process left: uploads that nobody knows, and half deleted ones."""
        return self.shared.clear(known, older_than_s=older_than_s)

    def _join(self, upload: str, file: str, parts: int, target: Path) -> str:
        digest = hashlib.sha256()
        with target.open("xb") as out:
            for number in range(1, parts + 1):
                for piece in self.shared.read(upload, _name(upload, file, number)):
                    digest.update(piece)
                    out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        return digest.hexdigest()


@contextmanager
def _named_failures() -> Iterator[None]:
    """What goes wrong with a part that nobody is to blame for."""
    try:
        yield
    except (FileNotFoundError, UploadGone) as error:
        raise ResourceNotFound("the upload was given up meanwhile") from error
    except (StoreUnavailable, OSError) as error:
        log.error("parts of uploads cannot be kept or read: %s", error)
        raise Unavailable("The upload's parts cannot be kept now; try again later.") from error


def _checked(upload: str) -> str:
    if not _ID.fullmatch(upload):
        raise ResourceNotFound("no such upload")
    return upload


def _name(upload: str, file: str, number: int) -> str:
    """Of a part. Raises ResourceNotFound, InvalidRequest."""
    _checked(upload)
    if file not in FILES:
        raise InvalidRequest(
            f"file {file[:80]!a}: only {' and '.join(FILES)} are taken", param="file"
        )
    if not 1 <= number <= MAX_PARTS:
        raise InvalidRequest(f"part {number}: from 1 to {MAX_PARTS}", param="part")
    return f"{file}.{number}"
