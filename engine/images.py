"""The images of a pass: which rows of it they take, and their vectors.

The tower runs once for an image, before the pass that first needs a row of it, and what it made
is kept until the image's last row was computed, so a prompt may be cut anywhere. Vectors belong to
one sequence: nobody finds, or can time, what another saw. Belongs to the engine loop's thread.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch

from engine.batch import ImageRows
from engine.models.tower import Tower
from engine.seeing import Seeing
from engine.step import Chunk, Seen

MOST_KEPT = 32  # images that are computed in part; more than that are seen again when needed


class ImageVectors:
    def __init__(self, tower: Tower, seeing: Seeing, device: torch.device) -> None:
        self.seeing = seeing
        self._tower, self._device, self._side = tower, device, tower.spec.side
        self._kept: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()

    def rehearse(self) -> int:
        """On CUDA: bytes that looking at images takes, and keeping what was seen."""
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        vectors = self._look(bytes(self.seeing.preparation.nbytes))
        most = torch.cuda.max_memory_allocated(self._device) - before
        return most + MOST_KEPT * vectors.nbytes

    def rows(self, chunks: Sequence[Chunk]) -> tuple[ImageRows, ...]:
        """Of a pass over these chunks, in their order."""
        found, first = [], 0
        for chunk in chunks:
            for seen in chunk.images:
                vectors = self._vectors(chunk.sequence, seen)
                part = vectors[seen.skip : seen.skip + seen.rows]
                found.append(ImageRows(first + seen.first, part))
            first += len(chunk.tokens)
        return tuple(found)

    def _vectors(self, sequence: int, seen: Seen) -> torch.Tensor:
        key = (sequence, seen.image.start)
        vectors = self._kept.pop(key, None)
        vectors = self._look(seen.image.pixels) if vectors is None else vectors
        if seen.skip + seen.rows < seen.image.tokens:
            self._kept[key] = vectors
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return vectors

    def _look(self, pixels: bytes) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
        return self._tower(flat.view(self._side, self._side, -1).to(self._device))
