"""A safetensors file whose header is believed only after every byte of it is accounted for.

Layout: 8 bytes little-endian header length, that much JSON, then tensor data. Accepted files have
a small header without duplicate names or padding, and tensors that tile the data exactly: no gap,
no overlap, nothing behind the last one. Data is read with ``pread``, never mapped, so a file that
shrinks under us is an error and not a dead process.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from adapters.errors import AdapterInvalid

MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 16_384
MAX_PADDING = 64  # writers align the data to 8 or 64 bytes with trailing spaces
CHUNK_BYTES = 8 << 20
MAX_DIMENSION = 1 << 31
LISTED = 8  # files of a directory that lacks one
LFS_POINTER = b"version https://git-lfs"
POINTER = "is a pointer of Git LFS, not the file itself; get that with `git lfs pull`"

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str  # as the file spells it
    dtype: str  # safetensors' own word: F16, BF16, F32 …
    shape: tuple[int, ...]
    start: int  # byte offset in the file
    nbytes: int


class TensorFile:
    """An open file and its checked header. Reads are independent of one another."""

    def __init__(self, descriptor: int, path: Path, tensors: Mapping[str, TensorInfo]) -> None:
        self._descriptor = descriptor
        self.path = path
        self.tensors = tensors

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        follow_symlinks: bool = False,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_tensors: int = MAX_TENSORS,
    ) -> Self:
        """Raises AdapterInvalid for anything but a sound, regular file."""
        descriptor = open_regular(path, follow_symlinks=follow_symlinks)
        try:
            size = os.fstat(descriptor).st_size
            header, length = _read_header(descriptor, path.name, size, max_header_bytes)
            if len(header) > max_tensors:
                problem = f"{path.name}: {len(header)} tensors, more than {max_tensors}"
                raise AdapterInvalid([problem])
            tensors = _tensors(header, path.name, 8 + length, size)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, path, tensors)

    def chunks(self, tensor: TensorInfo) -> Iterator[bytes]:
        """The tensor's bytes in order, at most CHUNK_BYTES at a time."""
        position, end = tensor.start, tensor.start + tensor.nbytes
        while position < end:
            wanted = min(CHUNK_BYTES, end - position)
            chunk = os.pread(self._descriptor, wanted, position)
            if len(chunk) < wanted:
                raise AdapterInvalid([f"{self.path.name}: ends inside {shown(tensor.name)}"])
            yield chunk
            position += len(chunk)

    def read(self, tensor: TensorInfo) -> bytearray:
        data = bytearray()
        for chunk in self.chunks(tensor):
            data += chunk
        return data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_regular(path: Path, *, follow_symlinks: bool = False) -> int:
    """A read-only descriptor of a regular file; never blocks on a pipe or opens a device."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if not follow_symlinks:
        if path.is_symlink():
            raise AdapterInvalid([f"{path.name}: is a symbolic link; copy the file itself"])
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as error:
        raise AdapterInvalid([f"{path.name}: not found; {_beside(path)}"]) from error
    except (OSError, ValueError) as error:
        raise AdapterInvalid([f"{path.name}: cannot be opened ({error})"]) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AdapterInvalid([f"{path.name}: not a regular file"])
    return descriptor


def is_pointer(start: bytes) -> bool:
    """Whether a file that begins so only says where Git LFS keeps the real one."""
    return start.startswith(LFS_POINTER)


def _beside(path: Path) -> str:
    """What there is instead. The names alone: where a server keeps them is nobody's business."""
    try:
        names = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        return f"there is no directory {shown(path.parent.name)}"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"found {', '.join(map(shown, names[:LISTED]))}{more}" if names else "found nothing"


def shown(name: str) -> str:
    """A name from an untrusted file, short and safe to print."""
    return ascii(name if len(name) <= 120 else name[:117] + "...")[1:-1]


def unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For ``json.loads``: an object in which no name occurs twice. Raises ValueError."""
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate name {shown(name)}")
            seen.add(name)
    return result


def _read_header(
    descriptor: int, file: str, size: int, max_bytes: int
) -> tuple[dict[str, object], int]:
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if is_pointer(os.pread(descriptor, len(LFS_POINTER), 0)):
        raise AdapterInvalid([f"{file}: {POINTER}"])
    if size < 8 or length > size - 8:
        raise AdapterInvalid([f"{file}: truncated, or not a safetensors file ({size} bytes)"])
    if length > max_bytes:
        raise AdapterInvalid([f"{file}: header of {length} bytes, more than {max_bytes}"])
    raw = os.pread(descriptor, length, 8)
    padding = len(raw) - len(raw.rstrip())
    if padding > MAX_PADDING:
        raise AdapterInvalid([f"{file}: header padded with {padding} bytes"])
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_pairs)
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise AdapterInvalid([f"{file}: header is not valid JSON ({shown(str(error))})"]) from error
    if not isinstance(header, dict) or not raw.startswith(b"{"):
        raise AdapterInvalid([f"{file}: header is not a JSON object"])
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise AdapterInvalid([f"{file}: __metadata__ is not an object of strings"])
    return header, length


def _tensors(
    header: dict[str, object], file: str, data_start: int, size: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        tensor = _tensor(name, entry, data_start)
        if isinstance(tensor, str):
            raise AdapterInvalid([f"{file}: {shown(name)}: {tensor}"])
        tensors[name] = tensor
    position = data_start
    for tensor in sorted(tensors.values(), key=lambda each: (each.start, each.nbytes)):
        if tensor.start != position:
            fault = "overlaps another tensor" if tensor.start < position else "follows a gap"
            raise AdapterInvalid([f"{file}: {shown(tensor.name)} {fault}"])
        position += tensor.nbytes
    if position != size:
        raise AdapterInvalid([f"{file}: tensors end at byte {position}, the file at {size}"])
    return tensors


def _tensor(name: str, entry: object, data_start: int) -> TensorInfo | str:
    """The tensor an entry describes, or what is wrong with it."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return "entry needs dtype, shape and data_offsets"
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        return f"unknown dtype {shown(str(dtype))}"
    if not _counts(shape) or len(shape) > 8 or not _counts(offsets) or len(offsets) != 2:
        return "shape and data_offsets must be lists of small non-negative integers"
    elements = 1
    for extent in shape:
        if extent > MAX_DIMENSION:
            return f"dimension {extent} is too large"
        elements *= extent
    start, end = offsets
    if end - start != elements * ITEM_BYTES[dtype]:
        return f"shape {shape} of {dtype} does not fill its {end - start} bytes"
    return TensorInfo(name, dtype, tuple(shape), data_start + start, end - start)


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 62
        for item in value
    )
