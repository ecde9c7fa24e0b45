"""Where the tensors of an adapter go inside the pages it was given. Torch-free.

An adapter's tensors are cut in blocks: A [r, K] by up to 16 rows, B [N, r] by up to 128 rows.
Blocks are laid one after another, each on a multiple of 64 elements; one that would cross the end
of a page starts on the next page. So every block is contiguous, and one int32 finds it: its
element offset in the pool divided by 64, its *unit*.

    A block  rows x Kp   Kp = K rounded up to 64
    B block  rows x rp   rp = r rounded up to 8; the pad columns are zero
             of both, in 8 bits: magnitudes in a room of their own, then a byte an element
    vector   up to 128 elements, for the outputs of a B block
    table    rows x Wp   of the embeddings or the head: as many rows as fit, 128 at most
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

UNIT = 64  # elements
A_ROWS = 16
B_ROWS = 128
A_HEAD, B_HEAD = UNIT, B_ROWS  # elements, the room for magnitudes in front of a block's codes

SITES: Mapping[str, tuple[str, ...]] = {  # fused module -> its slices, in order
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


class BlockTooLarge(ValueError):
    """One block is larger than a page."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one factor, in memory order."""

    first: int  # row of the factor
    rows: int
    stride: int  # elements from row to row
    head: int = 0  # elements in front of them, of a block in codes
    each: int = 1  # codes in the room of an element; 1: there are none

    @property
    def elements(self) -> int:
        return self.head - -self.rows * self.stride // self.each


def blocks_of_a(rank: int, inputs: int, each: int = 1) -> list[Block]:
    """``each``: codes in the room of an element, where they are such."""
    return _in_codes(_cut(rank, A_ROWS, padded_inputs(inputs)), A_HEAD, each)


def blocks_of_b(outputs: int, rank: int, each: int = 1) -> list[Block]:
    """``each``: codes in the room of an element, where they are such."""
    return _in_codes(_cut(outputs, B_ROWS, padded_rank(rank)), B_HEAD, each)


def blocks_of_vector(outputs: int) -> list[Block]:
    """A vector is a matrix of one column."""
    return list(_cut(outputs, B_ROWS, 1))


def blocks_of_table(rows: int, width: int, page_elements: int) -> list[Block]:
    stride = round_up(width, 8)
    return list(_cut(rows, max(1, min(B_ROWS, page_elements // stride)), stride))


def padded_inputs(inputs: int) -> int:
    return round_up(inputs, UNIT)


def padded_rank(rank: int) -> int:
    return round_up(rank, 8)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def place(sizes: Sequence[int], page_elements: int) -> tuple[list[int], int]:
    """Lay blocks of these sizes, in order, over as many pages as it takes.

    Returns each block's offset in elements, counting the adapter's own pages as consecutive, and
    the number of pages. Raises BlockTooLarge.
    """
    offsets: list[int] = []
    end = 0
    for size in sizes:
        if size > page_elements:
            raise BlockTooLarge(f"a block of {size} elements exceeds a page of {page_elements}")
        start = round_up(end, UNIT)
        if start // page_elements != (start + size - 1) // page_elements:
            start = round_up(start, page_elements)
        offsets.append(start)
        end = start + size
    return offsets, -(-end // page_elements)


def _in_codes(blocks: Iterator[Block], head: int, each: int) -> list[Block]:
    return [replace(b, head=head, each=each) for b in blocks] if each > 1 else list(blocks)


def _cut(rows: int, at_most: int, stride: int) -> Iterator[Block]:
    for first in range(0, rows, at_most):
        yield Block(first, min(at_most, rows - first), stride)
