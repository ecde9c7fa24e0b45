"""Host memory that pages are swapped to: pinned beside a GPU, plain memory beside a CPU.

On CUDA a copy runs on the side stream, after the passes that touch its page, and the next waits for
it on the device (``PageMemory.await_copies``); the host never does. Copies keep their order, so
a slot may be written again while what it held is still on its way back.
"""

import math
import mmap
import time
from collections.abc import Sequence

import torch

from engine.page_memory import PageMemory

TRIED = 4  # copies each way to learn the speed of the link


class HostPages:
    """Belongs to the engine loop's thread. Reading from host memory is the device's alone."""

    def __init__(self, memory: PageMemory, nbytes: int) -> None:
        self._memory, pool = memory, memory.pool
        page = pool.shape[1] * pool.itemsize
        self.slots = min(nbytes // page, memory.num_pages)
        shape = (self.slots, pool.shape[1])
        self._host = _pinned(shape, pool) if pool.is_cuda else _plain(shape, pool)
        self.page_s = self._measured() if self.slots else math.inf

    def touched(self, pages: Sequence[int]) -> bool:
        """Passes that may be under way use some of them."""
        return self._memory.touched(pages)

    def out(self, pages: Sequence[int], slots: Sequence[int], *, after: bool | None = None) -> None:
        """``after``: whether passes under way touch the pages, if that is known."""
        with self._memory.beside(pages, after):
            for page, slot in zip(pages, slots, strict=True):
                self._host[slot].copy_(self._memory.pool[page], non_blocking=True)

    def back(
        self, slots: Sequence[int], pages: Sequence[int], *, after: bool | None = None
    ) -> None:
        with self._memory.beside(pages, after):
            for slot, page in zip(slots, pages, strict=True):
                self._memory.pool[page].copy_(self._host[slot], non_blocking=True)

    def view(self, slot: int) -> memoryview:
        """Its bytes. For any thread, while nothing is copied from or to it."""
        return memoryview(self._host[slot].view(torch.uint8).numpy().data)

    def _measured(self) -> float:
        """Of a page that holds nothing yet, both ways; the first pair finds the memory."""
        took = []
        self._finish()  # the pool is zeroed by then
        for _ in range(1 + TRIED):
            began = time.perf_counter()
            self.out([0], [0])
            self.back([0], [0])
            self._finish()
            took.append(time.perf_counter() - began)
        return min(took[1:]) / 2

    def _finish(self) -> None:
        """Wait for the device; not while it serves."""
        if self._memory.pool.is_cuda:
            torch.cuda.synchronize(self._memory.pool.device)


def _pinned(shape: tuple[int, int], pool: torch.Tensor) -> torch.Tensor:
    return torch.zeros(shape, dtype=pool.dtype, pin_memory=True)


def _plain(shape: tuple[int, int], pool: torch.Tensor) -> torch.Tensor:
    """Memory that the operating system hands out when it is touched."""
    if not shape[0]:
        return torch.zeros(shape, dtype=pool.dtype)
    memory = mmap.mmap(-1, math.prod(shape) * pool.itemsize)
    return torch.frombuffer(memory, dtype=pool.dtype).view(shape)
