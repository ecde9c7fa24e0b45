"""The base's residual stream at some layers, for a proposer that reads it."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from engine.speculation.watcher import Seen, Watcher
from engine.step import Chunk


class Features:
    """Memory that every pass writes anew. It never moves, so graphs may write it. Belongs to the
    engine loop's thread."""

    def __init__(
        self, watcher: Watcher, *, rows: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """``rows``: tokens of the largest pass."""
        self._watcher, self.layers = watcher, tuple(watcher.layers)
        width = len(self.layers) * hidden
        self._memory = torch.zeros((rows, width), dtype=dtype, device=device) if width else None

    def enter(self, layer: int, residual: torch.Tensor) -> None:
        """What comes into a layer: [T, H]."""
        if self._memory is None or layer not in self.layers:
            return
        (T, H), at = residual.shape, self.layers.index(layer)
        self._memory[:T, at * H : (at + 1) * H].copy_(residual)

    def show(
        self,
        chunks: Sequence[Chunk],
        *,
        copies: Sequence[tuple[int, int]],
        width: int | None = None,
    ) -> None:
        """A pass was launched. ``width``: rows of each chunk, where they are padded to it."""
        if width is None:
            first = list(accumulate((len(chunk.tokens) for chunk in chunks), initial=0))[:-1]
        else:
            first = [number * width for number in range(len(chunks))]
        self._watcher.watch(
            Seen(chunks=chunks, first_rows=first, features=self._memory, copies=copies)
        )
