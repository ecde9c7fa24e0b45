"""Where the LoRA matrices of one site lie in the page pool.

A *site* is one linear layer of one decoder layer whose input is shared: "qkv", "o", "gate_up",
"down". Its output is cut into *slices* (q, k and v, for instance), each of which an adapter may
or may not touch, at its own rank. The matrices are cut into blocks that never cross a page:

    A of a slice  [rank, K]   blocks of 16 rows, row stride K rounded up to 64 elements
    B of a slice  [rows, rank] blocks of 128 output columns, row stride rank rounded up to 8,
                              the padding zero, the LoRA scale multiplied in

An adapter in 8 bits (``lora_codes``) has a byte for each element, and in front of them the
magnitudes of the block's rows, of the pool's type, in a room of A_HEAD or B_HEAD units.

A block is found by its *unit*: its element offset in the flat pool divided by 64. Units are 32
bit, so the pool may hold 2^37 elements, and the compiler knows every block's alignment.
"""

from dataclasses import dataclass

import torch

from kernels.launch import cdiv, round_up
from kernels.lora_codes import LoraCodes

UNIT = 64  # elements; blocks start at multiples of it
A_ROWS = 16  # rows of A in a block
B_ROWS = 128  # output columns in a block of B
A_HEAD, B_HEAD = 1, 2  # units in front of a block's codes
SPAN = 8  # blocks of B, of one slice, that a program of expand takes at most
ABSENT = -1  # unit of a block that does not exist


def a_stride(width: int) -> int:
    """Elements between two rows of A for an input of this width."""
    return round_up(width, UNIT)


def b_stride(rank: int) -> int:
    """Elements between two output columns of B at this rank."""
    return round_up(rank, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSite:
    """One site's view of the adapter table. The tensors change when residency does."""

    width: int  # K, columns of x
    slices: tuple[int, ...]  # output columns of each slice
    a_units: torch.Tensor  # [adapters, slices, RB] int32, RB = blocks of 16 ranks at most
    b_units: torch.Tensor  # [adapters, NB] int32, blocks counted over the slices in order
    ranks: torch.Tensor  # [adapters, slices] int32, 0: this adapter leaves the slice alone
    block_slice: torch.Tensor  # [NB] int32, the slice a block of B belongs to
    block_row: torch.Tensor  # [NB] int32, its first column in y
    block_rows: torch.Tensor  # [NB] int32, its columns, at most 128
    spans: torch.Tensor  # [S, 4] int32: slice, first block, first column in y, columns
    codes: LoraCodes | None = None  # of A and B; None: they are of the pool's type
    bias_units: torch.Tensor | None = None  # [adapters, NB] int32, block_rows elements; -1 none
    scale_units: torch.Tensor | None = (
        None  # the same, gains: factors of the output less one (DoRA)
    )

    @property
    def rank_capacity(self) -> int:
        """R: the largest rank the table has room for, a multiple of 16."""
        return self.a_units.shape[2] * A_ROWS

    @property
    def columns(self) -> int:
        """N: output columns of all slices."""
        return sum(self.slices)


def site_blocks(slices: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    """(block_slice, block_row, block_rows) of a site whose slices have these widths."""
    blocks: tuple[list[int], list[int], list[int]] = ([], [], [])
    first = 0
    for index, columns in enumerate(slices):
        for row in range(0, columns, B_ROWS):
            blocks[0].append(index)
            blocks[1].append(first + row)
            blocks[2].append(min(B_ROWS, columns - row))
        first += columns
    return blocks


def site_spans(slices: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """(slice, first block, first column, columns) of each run of SPAN blocks of a slice."""
    spans = []
    column = block = 0
    for index, columns in enumerate(slices):
        for first in range(0, columns, SPAN * B_ROWS):
            count = min(SPAN * B_ROWS, columns - first)
            spans.append((index, block + first // B_ROWS, column + first, count))
        column, block = column + columns, block + cdiv(columns, B_ROWS)
    return spans


def empty_site(
    width: int, slices: tuple[int, ...], *, adapters: int, rank: int, device: torch.device | str
) -> LoraSite:
    """A site whose table has room for so many adapters of at most this rank, all absent."""

    def table(*shape: int, fill: int = ABSENT) -> torch.Tensor:
        return torch.full(shape, fill, dtype=torch.int32, device=device)

    columns = [torch.tensor(c, dtype=torch.int32, device=device) for c in site_blocks(slices)]
    blocks = columns[0].numel()
    return LoraSite(
        width=width,
        slices=slices,
        a_units=table(adapters, len(slices), max(1, cdiv(rank, A_ROWS))),
        b_units=table(adapters, blocks),
        ranks=table(adapters, len(slices), fill=0),
        block_slice=columns[0],
        block_row=columns[1],
        block_rows=columns[2],
        spans=torch.tensor(site_spans(slices), dtype=torch.int32, device=device),
    )
