"""A plan becomes tensors that say where each row stands, and which rows are wanted."""

import pytest
import torch

from engine.batch import BatchBuilder
from engine.step import StepPlan
from tests.engine.rig import chunk, draw

CPU = torch.device("cpu")


def build(*chunks, page_tokens=4, tiles=()):
    return BatchBuilder(page_tokens, CPU, tiles=tiles).build(StepPlan(chunks))


def test_positions_and_slots_follow_the_pages():
    inputs = build(chunk([5, 6, 7, 8], [9, 2, 7], start=3), chunk([1], [4, 0], start=6))
    assert inputs.tokens.tolist() == [5, 6, 7, 8, 1]
    assert inputs.positions.tolist() == [3, 4, 5, 6, 6]
    assert inputs.slots.tolist() == [9 * 4 + 3, 2 * 4, 2 * 4 + 1, 2 * 4 + 2, 0 * 4 + 2]


def test_single_tokens_decode_and_longer_chunks_prefill_in_any_order():
    inputs = build(
        chunk([1], [3], start=2),
        chunk([1, 2], [4, 5], start=3),
        chunk([1], [6, 7], start=7),
        chunk([1, 2, 3], [8]),
    )
    assert inputs.decode.rows.tolist() == [0, 3]
    assert inputs.decode.context_lens.tolist() == [3, 8]
    assert inputs.decode.page_table.tolist() == [[3, 0], [6, 7]]
    assert inputs.prefill.query_start.tolist() == [1, 4]
    assert inputs.prefill.query_len.tolist() == [2, 3]
    assert inputs.prefill.context_lens.tolist() == [5, 3]
    assert inputs.prefill.page_table.tolist() == [[4, 5], [8, 0]]
    assert inputs.prefill.longest == 3


def test_a_kind_that_is_absent_costs_nothing():
    assert build(chunk([1], [0])).prefill is None
    assert build(chunk([1, 2], [0])).decode is None
    assert build(chunk([1], [0])).segments is None


def test_pages_beyond_the_context_are_left_out():
    inputs = build(chunk([1], [3, 4, 5, 6], start=4))
    assert inputs.decode.page_table.tolist() == [[3, 4]]


def test_rows_of_one_adapter_are_one_segment():
    inputs = build(
        chunk([1], [0], adapter=2),
        chunk([1, 2, 3], [1], adapter=2),
        chunk([1], [2]),
        chunk([1, 2], [3], adapter=0),
    )
    assert inputs.segments.runs == ((0, 4, 2), (4, 1, -1), (5, 2, 0))


def test_a_chunk_is_the_base_s_until_its_adapter_is_invoked():
    inputs = build(
        chunk([1] * 3, [1], start=1, adapter=2, active_from=3),
        chunk([1, 2], [2], adapter=2, active_from=9),
        chunk([1], [3, 4], start=5, adapter=2, active_from=5),
        chunk([1, 2], [5, 6], start=4, adapter=2, active_from=1),
    )
    assert inputs.segments.runs == ((0, 2, -1), (2, 1, 2), (3, 2, -1), (5, 3, 2))


def test_segments_are_cut_to_the_tile_that_holds_the_longest():
    long, short = chunk([1] * 7, [0, 1], adapter=1), chunk([1] * 2, [2], adapter=2)
    cut = build(long, short, tiles=(3, 5)).segments
    assert cut.runs == ((0, 5, 1), (5, 2, 1), (7, 2, 2))
    assert cut.longest == 5
    cut = build(short, tiles=(3, 5)).segments
    assert cut.runs == ((0, 2, 2),)
    assert cut.longest == 3


def test_only_rows_that_draw_or_report_go_through_the_head():
    inputs = build(
        chunk([1, 2, 3], [0], prompt_logprobs=1),
        chunk([1], [1], draw=draw()),
        chunk([1, 2], [2]),
        chunk([1, 2, 3], [3], draw=draw(), prompt_logprobs=0),
    )
    assert inputs.heads.draws == ((1, 0), (3, 1))
    assert inputs.heads.prompts == ((0, 2, 2), (3, 4, 2))
    assert inputs.head_rows.tolist() == [3, 8, 0, 1, 6, 7]


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_any_page_size_addresses_the_same_positions(page_tokens):
    pages = list(range(40, 40 + -(-37 // page_tokens)))[::-1]
    inputs = build(chunk(list(range(30)), pages, start=7), page_tokens=page_tokens)
    for position, slot in zip(inputs.positions.tolist(), inputs.slots.tolist(), strict=True):
        assert pages[position // page_tokens] == slot // page_tokens
        assert position % page_tokens == slot % page_tokens
