"""The two files of an adapter, cut into parts that travel one by one."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters.manifest import CONFIG_FILE, WEIGHTS_FILE

FILES = (CONFIG_FILE, WEIGHTS_FILE)


@dataclass(frozen=True, slots=True)
class Part:
    file: str
    number: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is pushed, as it was when it was hashed."""

    folder: Path
    part_bytes: int
    sums: Mapping[str, str]  # sha256 by file
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, folder: Path, part_bytes: int) -> "Bundle":
        """Raises OSError."""
        sums, sizes = {}, {}
        for file in FILES:
            with (folder / file).open("rb") as stream:
                sums[file] = hashlib.file_digest(stream, "sha256").hexdigest()
                sizes[file] = stream.tell()
        return cls(folder, part_bytes, sums, sizes)

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def identity(self) -> str:
        """The same only for the same bytes in the same parts."""
        text = json.dumps([self.part_bytes, dict(self.sums)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def parts(self) -> Iterator[Part]:
        for file in FILES:
            count = max(1, -(-self.sizes[file] // self.part_bytes))
            for number in range(1, count + 1):
                offset = (number - 1) * self.part_bytes
                left = self.sizes[file] - offset
                yield Part(file, number, offset, min(self.part_bytes, left))

    def read(self, part: Part) -> bytes:
        with (self.folder / part.file).open("rb") as stream:
            stream.seek(part.offset)
            return stream.read(part.nbytes)
