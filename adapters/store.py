"""Adapters on disk, each under the hash of its content.

``root/sha256/<digest>/`` holds adapter_config.json and adapter_model.safetensors and never
changes. An adapter appears by one rename of a directory that was written and synced before, so a
reader sees all of it or nothing. Names given by people never become paths: only digests do, after
their grammar is checked. Safe for several processes and threads.
"""

import contextlib
import errno
import os
import re
import shutil
import time
from pathlib import Path
from uuid import uuid4

from adapters.errors import (
    AdapterCorrupt,
    AdapterError,
    AdapterInvalid,
    AdapterMissing,
    AdapterTooLarge,
)
from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE, AdapterManifest
from adapters.tensor_file import open_regular

DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_BYTES = 8 << 30
COPY_BYTES = 8 << 20
ATTEMPTS = 20


class AdapterStore:
    def __init__(self, root: Path | str, *, max_bytes: int = MAX_BYTES) -> None:
        """``root`` is made on the first put. ``max_bytes`` bounds one file of one adapter."""
        self._blobs = Path(root) / "sha256"
        self._incoming = Path(root) / "incoming"
        self._max_bytes = max_bytes

    def put(self, directory: Path | str) -> str:
        """Copy an adapter in and return its digest. The copy is what gets hashed.

        Raises AdapterInvalid (or its AdapterTooLarge) and leaves nothing behind.
        """
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._blobs.mkdir(exist_ok=True)
        copy = self._fresh_directory()
        try:
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                self._copy(Path(directory) / name, copy / name)
            digest = AdapterManifest.read(copy).digest
            _sync(copy)
            self._publish(copy, digest)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return digest

    def exists(self, digest: str) -> bool:
        if not DIGEST.fullmatch(digest):
            return False
        place = self._place(digest)
        return place.is_dir() and not place.is_symlink()

    def path(self, digest: str) -> Path:
        """The adapter's directory, content unchecked. Raises AdapterMissing."""
        if not self.exists(digest):
            raise AdapterMissing(f"the store has no adapter {digest[:80]!r}")
        return self._place(digest)

    def open(self, digest: str) -> AdapterManifest:
        """The adapter, its bytes verified. Raises AdapterMissing or AdapterCorrupt."""
        try:
            manifest = AdapterManifest.read(self.path(digest))
        except (AdapterInvalid, OSError) as error:
            raise AdapterCorrupt(f"stored adapter {digest}: {error}") from error
        if manifest.digest != digest:
            raise AdapterCorrupt(f"stored adapter {digest}: its bytes hash to {manifest.digest}")
        return manifest

    def delete(self, digest: str) -> None:
        """Idempotent. Readers that hold the files open keep them."""
        if not self.exists(digest):
            return
        grave = self._fresh_directory()
        try:
            os.rename(self._place(digest), grave / digest)
            _sync(self._blobs)
        except FileNotFoundError:
            pass  # another process deleted it first
        finally:
            shutil.rmtree(grave, ignore_errors=True)

    def stale(self, older_than_s: float) -> list[str]:
        """Adapters that were not put for so long, sorted."""
        return [digest for digest in self.digests() if self._age(digest) > older_than_s]

    def collect(self, digest: str, older_than_s: float) -> bool:
        """Delete an adapter unless it was put again meanwhile; whether it is gone.

        It is moved out of sight first and looked at then: a put before that made it young, and
        it goes back; a put after it finds no adapter and stores its own copy.
        """
        if not self.exists(digest):
            return True
        if self._age(digest) <= older_than_s:  # readers need not miss it even for a moment
            return False
        grave = self._fresh_directory()
        try:
            os.rename(self._place(digest), grave / digest)
            if _age(grave / digest) <= older_than_s:
                with contextlib.suppress(OSError):  # another put was faster: equal content
                    os.rename(grave / digest, self._place(digest))
                return False
        except FileNotFoundError:
            return True
        finally:
            _sync(self._blobs)
            shutil.rmtree(grave, ignore_errors=True)
        return True

    def trim(self, max_bytes: int, *, keep: str) -> None:
        """For a store of copies: delete those put first until the rest fits; never ``keep``."""
        found = sorted((self._age(d), self._nbytes(d), d) for d in self.digests() if d != keep)
        total = sum(size for _, size, _ in found) + self._nbytes(keep)
        while total > max_bytes and found:
            _, size, oldest = found.pop()
            self.delete(oldest)
            total -= size

    def digests(self) -> list[str]:
        """All adapters, sorted."""
        if not self._blobs.is_dir():
            return []
        return sorted(each.name for each in self._blobs.iterdir() if DIGEST.fullmatch(each.name))

    def _place(self, digest: str) -> Path:
        assert DIGEST.fullmatch(digest)
        return self._blobs / digest

    def _fresh_directory(self) -> Path:
        path = self._incoming / uuid4().hex
        path.mkdir()
        return path

    def _publish(self, copy: Path, digest: str) -> None:
        """Move a complete copy into place; a sound adapter already there stays."""
        for _ in range(ATTEMPTS):
            if self._is_sound(digest) and self._touch(digest):
                return
            self.delete(digest)  # only if it is there and damaged
            try:
                os.rename(copy, self._place(digest))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                _sync(self._blobs)
                return
        raise AdapterError(f"adapter {digest}: others keep putting and deleting it")

    def _touch(self, digest: str) -> bool:
        """It was wanted now; false if it has just been deleted."""
        try:
            os.utime(self._place(digest))
        except FileNotFoundError:
            return False
        return True

    def _nbytes(self, digest: str) -> int:
        try:
            return sum(file.stat().st_size for file in self._place(digest).iterdir())
        except FileNotFoundError:
            return 0

    def _age(self, digest: str) -> float:
        try:
            return _age(self._place(digest))
        except FileNotFoundError:
            return 0.0

    def _is_sound(self, digest: str) -> bool:
        try:
            self.open(digest)
        except AdapterError:
            return False
        return True

    def _copy(self, source: Path, target: Path) -> None:
        descriptor = open_regular(source)
        try:
            size = os.fstat(descriptor).st_size
            if size > self._max_bytes:
                text = f"{source.name}: {size} bytes, more than {self._max_bytes}"
                raise AdapterTooLarge([text])
            with open(target, "xb") as file:
                while chunk := os.read(descriptor, COPY_BYTES):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        finally:
            os.close(descriptor)


def _age(place: Path) -> float:
    """Seconds since it was put."""
    return time.time() - place.stat().st_mtime


def _sync(directory: Path) -> None:
    """Make renames inside a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
