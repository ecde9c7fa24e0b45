"""Blocks of an adapter are contiguous, aligned, apart from each other, and never cross a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.placement import (
    A_ROWS,
    B_ROWS,
    SITES,
    UNIT,
    BlockTooLarge,
    blocks_of_a,
    blocks_of_b,
    place,
)
from kernels import lora_table

PAGE = 4096
SIZES = st.lists(st.integers(1, PAGE), max_size=60)


@given(SIZES)
def test_blocks_are_aligned_and_stay_inside_a_page(sizes):
    offsets, pages = place(sizes, PAGE)
    for size, offset in zip(sizes, offsets, strict=True):
        assert offset % UNIT == 0
        assert offset // PAGE == (offset + size - 1) // PAGE < pages


@given(SIZES)
def test_blocks_do_not_overlap_and_keep_their_order(sizes):
    offsets, _ = place(sizes, PAGE)
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    assert all(end <= later for end, later in zip(ends, offsets[1:], strict=False))


@given(SIZES)
def test_no_page_more_than_needed_is_taken(sizes):
    offsets, pages = place(sizes, PAGE)
    last = offsets[-1] // PAGE + 1 if sizes else 0
    assert pages == last


def test_nothing_takes_no_page():
    assert place([], PAGE) == ([], 0)


def test_a_block_larger_than_a_page_is_refused():
    assert place([PAGE], PAGE) == ([0], 1)
    with pytest.raises(BlockTooLarge, match="4097"):
        place([1, PAGE + 1], PAGE)


@pytest.mark.parametrize("rank", [1, 7, 16, 17, 33, 64])
@pytest.mark.parametrize("inputs", [1, 64, 576, 1000])
def test_blocks_of_a_cover_every_rank_once(rank, inputs):
    blocks = blocks_of_a(rank, inputs)
    assert [row for block in blocks for row in range(block.first, block.first + block.rows)] == [
        *range(rank)
    ]
    assert all(block.rows <= A_ROWS and block.stride % UNIT == 0 for block in blocks)
    assert all(inputs <= block.stride < inputs + UNIT for block in blocks)


@pytest.mark.parametrize("outputs", [1, 128, 129, 192, 576])
@pytest.mark.parametrize("rank", [1, 8, 9, 20])
def test_blocks_of_b_cover_every_output_once(outputs, rank):
    blocks = blocks_of_b(outputs, rank)
    assert sum(block.rows for block in blocks) == outputs
    assert [block.first for block in blocks] == [*range(0, outputs, B_ROWS)]
    assert all(rank <= block.stride < rank + 8 and block.stride % 8 == 0 for block in blocks)


def test_the_kernels_cut_adapters_the_same_way():
    assert (UNIT, A_ROWS, B_ROWS) == (lora_table.UNIT, lora_table.A_ROWS, lora_table.B_ROWS)
    for width, rank in ((1, 1), (576, 8), (577, 9), (64, 64)):
        assert blocks_of_a(rank, width)[0].stride == lora_table.a_stride(width)
        assert blocks_of_b(width, rank)[0].stride == lora_table.b_stride(rank)


def test_every_linear_of_a_layer_belongs_to_one_site():
    modules = [module for modules in SITES.values() for module in modules]
    assert len(modules) == len(set(modules)) == 7
