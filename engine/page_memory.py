"""The memory behind the page pool: one tensor, and each layer's view of K and V in it.

    pool     [P, E]  E elements of the compute dtype per page, a multiple of 64
    layer l  [P, 2, KVH, PS, D]  a view; a (page, k or v, head) tile [PS, D] is contiguous

KV takes the first ``L * 2 * KVH * PS * D`` elements of a page; see ``page_size`` for E. Narrow KV
takes so many bytes instead, and behind them lie the magnitudes, float32 [L, 2, KVH, PS]: whoever
copies or shares a page has both.

On CUDA whole pages are copied to and from the host on one side stream, beside the passes. What
comes into pages that no pass under way touches need not wait for its end.
"""

import math
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from engine.models.spec import ModelSpec
from engine.page_size import MAGNITUDE, page_elements
from engine.step import StepPlan

UNDER_WAY = 2  # passes at most that were launched and whose end nobody waited for


@dataclass(frozen=True, slots=True)
class _Launch:
    plan: StepPlan
    left: set[int] = field(default_factory=set)  # by adapters, since

    def touches(self, pages: set[int]) -> bool:
        if not self.left.isdisjoint(pages):
            return True
        if any(not pages.isdisjoint(pair) for pair in self.plan.copies):
            return True
        return any(not pages.isdisjoint(chunk.pages) for chunk in self.plan.chunks)


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's view of the pool, as the attention kernels take it."""

    kv: torch.Tensor  # [P, 2, KVH, PS, D]
    magnitudes: torch.Tensor | None = None  # float32 [P, 2, KVH, PS], of a kv in 8 bits


class PageMemory:
    """Belongs to the engine loop's thread. Starts zeroed; on CPU an untouched page takes no
    memory."""

    def __init__(
        self,
        spec: ModelSpec,
        page_tokens: int,
        *,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        narrow: bool = False,
    ) -> None:
        self.page_tokens, self.num_pages = page_tokens, num_pages
        cuda = device.type == "cuda"
        self.side = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None  # when the last such copy ends
        self._recent: deque[_Launch] = deque(maxlen=UNDER_WAY)
        elements = page_elements(spec, page_tokens, item=dtype.itemsize, narrow=narrow)
        self.pool = _zeros((num_pages, elements), dtype, device)
        if cuda:
            torch.cuda.synchronize(device)  # what comes beside passes finds it zeroed
        self.flat = self.pool.view(-1)
        shape = (num_pages, spec.num_layers, 2, spec.num_kv_heads, page_tokens)
        end = spec.kv_elements(page_tokens)
        layers = range(spec.num_layers)
        if not narrow:
            kv = self.pool[:, :end].view(*shape, spec.head_dim)
            self.layers = [LayerPages(kv[:, layer]) for layer in layers]
            return
        data = self.pool.view(torch.uint8)
        kv = data[:, :end].view(torch.float8_e4m3fn).view(*shape, spec.head_dim)
        beside = data[:, end : end + MAGNITUDE * end // spec.head_dim].view(torch.float32)
        magnitudes = beside.view(shape)
        self.layers = [LayerPages(kv[:, layer], magnitudes[:, layer]) for layer in layers]

    def launch(self, plan: StepPlan) -> None:
        """A pass is launched."""
        self._recent.append(_Launch(plan))

    def leave(self, pages: Sequence[int]) -> None:
        """An adapter gives these up: passes under way may read them."""
        for launched in self._recent:
            launched.left.update(pages)

    def touched(self, pages: Sequence[int]) -> bool:
        """A pass that may be under way reads or writes some of them."""
        wanted = set(pages)
        return any(launched.touches(wanted) for launched in self._recent)

    @contextmanager
    def beside(self, pages: Sequence[int], after: bool | None = None) -> Iterator[None]:
        """What is copied within, from or to these pages, comes after the passes under way that
        touch them, and before those launched later. ``after``: whether it has to wait for any, if
        that is known; not where neither they nor the copy writes these pages."""
        if self.side is None:
            yield
            return
        if self.touched(pages) if after is None else after:
            self.side.wait_stream(torch.cuda.current_stream(self.pool.device))
        with torch.cuda.stream(self.side):
            yield
            self._copied = self.side.record_event()

    def copied(self) -> Callable[[], bool]:
        """Whether what was copied ``beside`` so far is over; for any thread to ask."""
        if self.side is None:
            return _always
        event = self.side.record_event()
        return lambda: bool(event.query())

    def await_copies(self) -> None:
        """Work launched from now on comes after what was copied ``beside``."""
        if self._copied is not None:
            torch.cuda.current_stream(self.pool.device).wait_event(self._copied)
            self._copied = None

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to), before whatever is launched next."""
        for source, target in pairs:
            self.pool[target].copy_(self.pool[source])


def _always() -> bool:
    return True


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros, but on CPU the operating system hands out the memory when it is touched."""
    if device.type != "cpu" or math.prod(shape) == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
