"""The memory behind the page pool: one tensor, and each layer's view of K and V in it.

    pool     [P, E]  E elements of the compute dtype per page, a multiple of 64
    layer l  [P, 2, KVH, PS, D]  a view; a (page, k or v, head) tile [PS, D] is contiguous

KV takes the first ``L * 2 * KVH * PS * D`` elements of a page; see ``page_size`` for E.
"""

import math
import mmap
from collections.abc import Sequence

import torch

from engine.models.spec import ModelSpec
from engine.page_size import page_elements


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
    ) -> None:
        self.page_tokens, self.num_pages = page_tokens, num_pages
        elements = page_elements(spec, page_tokens)
        self.pool = _zeros((num_pages, elements), dtype, device)
        self.flat = self.pool.view(-1)
        kv = self.pool[:, : spec.kv_elements(page_tokens)].view(
            num_pages, spec.num_layers, 2, spec.num_kv_heads, page_tokens, spec.head_dim
        )
        self.layers = [kv[:, layer] for layer in range(spec.num_layers)]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to), before whatever is launched next."""
        for source, target in pairs:
            self.pool[target].copy_(self.pool[source])


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros, but on CPU the operating system hands out the memory when it is touched."""
    if device.type != "cpu" or math.prod(shape) == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
