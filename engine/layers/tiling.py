"""Makes a Linear's rows independent of how many rows share the call.

A matrix library picks its blocking by the number of rows, and with another blocking the same row
comes out with other last bits. Deterministic mode therefore never shows it a free choice: rows go
through in tiles, and ``find_tiling`` tries, with the real weights on this machine, which tiling
gives every row the same bits wherever it stands and whoever stands beside it. Row by row always
does, so there is always an answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.layers.linear import Linear
from kernels.launch import cdiv

PROBE_ROWS = 75  # a few tiles and a ragged end
PROBE_OUTPUTS = 1 << 17  # of 20000 in bfloat16 about one shows that a sum had another order
ALONE = (0, 1, 14, 15, 16, 31, 32, 63, 64, 74)  # first, last and neighbours of a tile's edges


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    padded: bool  # fill the last tile up with zero rows, so that every call has the same shape


WHOLE = Tiling(1 << 30, False)  # every row already comes out alike
FULL = (Tiling(16, True), Tiling(32, True))
CANDIDATES = (WHOLE, Tiling(32, False), *FULL)
ROW_BY_ROW = Tiling(1, False)


class Tiled:
    """A Linear in tiles."""

    def __init__(self, inner: Linear, tiling: Tiling) -> None:
        self.inner, self.tiling = inner, tiling
        self.size, self.dtype = inner.size, inner.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        T, (rows, padded) = x.shape[0], (self.tiling.rows, self.tiling.padded)
        if rows == T or (rows > T and not padded):
            return self.inner(x)
        if not padded:
            return torch.cat([self.inner(tile) for tile in torch.split(x, rows)])
        filled = x.new_zeros((-(-T // rows) * rows, x.shape[1]))
        filled[:T] = x
        return torch.cat([self.inner(tile) for tile in torch.split(filled, rows)])[:T]


def find_tiling(linear: Linear, device: torch.device) -> Tiling:
    """The first candidate under which no row depends on its place or its neighbours.

    On a GPU only full tiles are tried: its library has a product for every number of rows, and the
    numbers tried here would say nothing of the others.
    """
    for tiling in CANDIDATES if device.type == "cpu" else FULL:
        tiled = Tiled(linear, tiling)
        if all(_independent(tiled, x) for x in _probes(linear, device)):
            return tiling
    return ROW_BY_ROW


def _probes(linear: Linear, device: torch.device) -> Iterator[torch.Tensor]:
    """Batches of rows: so many that a sum of another order shows in some rounded output."""
    random, (K, N) = torch.Generator().manual_seed(0), linear.size
    for _ in range(cdiv(PROBE_OUTPUTS, PROBE_ROWS * N)):
        yield torch.randn(PROBE_ROWS, K, generator=random).to(device, linear.dtype)


def _independent(tiled: Tiled, x: torch.Tensor) -> bool:
    together = tiled(x)
    return all(
        torch.equal(tiled(x[rows]), together[rows]) for rows in _subsets(x.shape[0], x.device)
    )


def _subsets(rows: int, device: torch.device) -> Sequence[torch.Tensor]:
    """Rows alone, small and ragged batches, and the rows in other places."""
    alone = [torch.tensor([row], device=device) for row in ALONE]
    ragged = [torch.arange(size, device=device) for size in (2, 3, 5, 8, 13, 17, 31, 33, 64)]
    moved = [torch.arange(rows, device=device).flip(0), torch.arange(7, rows, device=device)]
    return [*alone, *ragged, *moved]
