"""The tokens that the pass launched last drew, still on the device: what DRAWN stands for."""

from collections.abc import Sequence

import torch

from engine.step import DRAWN, Chunk


class LastDraws:
    """Belongs to the engine loop's thread. Its tensor never moves, so graphs may read it."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._rows: dict[int, int] = {}  # by sequence

    def row(self, chunk: Chunk) -> int:
        """Where the chunk's last token lies; -1 when the chunk names it."""
        return self._rows[chunk.sequence] if chunk.tokens[-1] == DRAWN else -1

    def keep(self, drawing: Sequence[Chunk], tokens: torch.Tensor | None) -> None:
        """``tokens`` [B], of the chunks that draw; None when they are in place already. With drafts
        nothing is kept: which of a chunk's draws is its last is found out by whoever reads them."""
        if any(chunk.drafts for chunk in drawing):
            self._rows = {}
            return
        self._rows = {chunk.sequence: row for row, chunk in enumerate(drawing)}
        if tokens is not None and drawing:
            self.tokens[: len(drawing)].copy_(tokens)
