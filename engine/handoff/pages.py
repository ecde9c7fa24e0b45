"""Pages on their way between engines: pinned host memory, or another GPU's memory of this host.

A page travels whole, with its magnitudes where K and V take 8 bits. Between two GPUs of one host
the taker opens the giver's pool once, by CUDA's handle of it, and copies page by page from one
memory to the other on its side stream; the giver holds each page until it hears that it was read.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.handoff.news import Ended
from engine.host_pages import HostPages
from engine.page_memory import PageMemory

HOST = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class PoolHandle(msgspec.Struct, frozen=True, array_like=True):
    """Where another process finds a pool."""

    host: str  # boot of the machine
    shape: tuple[int, int]
    dtype: str
    storage: list[Any]  # as CUDA and torch name it


class TransferPages:
    """A ``PageTransfer``. Belongs to the engine loop's thread, but for ``view``."""

    def __init__(self, memory: PageMemory, nbytes: int, *, direct: bool) -> None:
        self._memory, self._host = memory, HostPages(memory, nbytes)
        self.slots, self.page_bytes = self._host.slots, memory.pool[0].nbytes
        self.pool = _handle(memory.pool) if direct and memory.pool.is_cuda else b""
        self._direct = direct and memory.pool.is_cuda
        self._open: dict[bytes, torch.Tensor | None] = {}  # None: cannot be read from here

    def out(self, page: int, slot: int) -> Ended:
        self._host.out([page], [slot], after=False)
        return self._memory.copied()

    def back(self, slot: int, page: int) -> Ended:
        self._host.back([slot], [page])
        return self._memory.copied()

    def view(self, slot: int) -> memoryview:
        return self._host.view(slot)

    def reads(self, pool: bytes) -> bool:
        return self._direct and self._theirs(pool) is not None

    def read(self, pool: bytes, theirs: int, page: int) -> Ended:
        source = self._theirs(pool)
        assert source is not None, "it was asked whether it can be read"
        if not 0 <= theirs < len(source):
            raise IndexError(f"page {theirs} of {len(source)}")
        with self._memory.beside([page]):
            self._memory.pool[page].copy_(source[theirs], non_blocking=True)
        return self._memory.copied()

    def _theirs(self, pool: bytes) -> torch.Tensor | None:
        if pool not in self._open:
            self._open[pool] = _opened(pool, self._memory.pool)
        return self._open[pool]


def _handle(pool: torch.Tensor) -> bytes:
    try:
        shared = pool.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        log.warning("the pool cannot be read by other processes of this host: %s", error)
        return b""
    made = PoolHandle(_boot(), (pool.shape[0], pool.shape[1]), str(pool.dtype), list(shared))
    return msgspec.msgpack.encode(made)


def _opened(handle: bytes, ours: torch.Tensor) -> torch.Tensor | None:
    """None where it lies on another host, or is of another kind."""
    try:
        found = msgspec.msgpack.decode(handle, type=PoolHandle)
    except msgspec.DecodeError:
        return None
    if found.host != _boot() or found.shape[1] != ours.shape[1] or found.dtype != str(ours.dtype):
        return None
    try:
        storage = torch.UntypedStorage._new_shared_cuda(*found.storage)
        whole = torch.empty(0, dtype=ours.dtype, device=storage.device).set_(storage)
        theirs = whole[: found.shape[0] * found.shape[1]].view(found.shape)
        ours.new_empty(ours.shape[1]).copy_(theirs[0])  # whether it can be read at all
        torch.cuda.synchronize(ours.device)
    except RuntimeError as error:
        log.warning("pages of another GPU of this host go by way of its memory: %s", error)
        return None
    log.info("pages come straight from another engine's memory on this host")
    return theirs


def _boot() -> str:
    return HOST.read_text().strip() if HOST.exists() else ""
