"""What a captured pass of prompts and decodes reads is the plan, and padding that does nothing."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import BatchBuilder
from engine.last_draws import LastDraws
from engine.mixed_graphs import padded_inputs
from engine.mixed_layout import MixedLayout
from engine.step import DRAWN, StepPlan
from kernels.segments import SEGMENT_TILES
from tests.engine.rig import chunk, draw

CPU = torch.device("cpu")
PAGE = 4
LAYOUT = MixedLayout(tokens=96, sequences=12, pages=32)


def builder():
    return BatchBuilder(PAGE, CPU, tiles=SEGMENT_TILES)


def last_draws():
    last = LastDraws(12, CPU)
    last.keep([chunk([0], [7])] * 12, torch.arange(500, 512))
    last._rows = {7: 3}
    return last


def padded(plan, block=None):
    block = np.full(LAYOUT.size, 77, dtype=np.int32) if block is None else block
    host = builder().host(plan, last_draws())
    assert LAYOUT.holds(host)
    LAYOUT.fill(host, block)
    return padded_inputs(LAYOUT, torch.from_numpy(block), last_draws().tokens, adapted=True)


@st.composite
def plans(draws):
    chunks = []
    for _ in range(draws(st.integers(1, 8))):
        length = draws(st.sampled_from([1, 1, 2, 5, 11]))
        start = draws(st.integers(0, 20))
        pages = draws(
            st.lists(st.integers(0, 99), min_size=-(-(start + length) // PAGE), max_size=12)
        )
        adapter = draws(st.sampled_from([-1, 0, 5]))
        wanted = draw() if draws(st.booleans()) else None
        chunks.append(
            chunk(list(range(length)), pages, start=start, adapter=adapter, draw=wanted)
        )  # fmt: skip
    return StepPlan(sorted(chunks, key=lambda c: c.adapter))


@settings(max_examples=60, deadline=None)
@given(plans(), plans())
def test_a_padded_batch_is_the_batch_whatever_was_there_before(before, plan):
    block = np.full(LAYOUT.size, 77, dtype=np.int32)
    padded(before, block)
    ours, exact = padded(plan, block), builder().build(plan, last_draws())
    count = len(exact.tokens)
    for name, unused in (("tokens", 0), ("positions", 0), ("slots", -1)):
        assert torch.equal(getattr(ours, name)[:count], getattr(exact, name))
        assert (getattr(ours, name)[count:] == unused).all()
    assert torch.equal(ours.head_rows[: len(exact.head_rows)], exact.head_rows)
    for kind, ends in (("decode", "context_lens"), ("prefill", "query_len")):
        mine, theirs = getattr(ours, kind), getattr(exact, kind)
        rows = 0 if theirs is None else len(theirs.context_lens)
        assert not getattr(mine, ends)[rows:].any()
        if theirs is not None:
            used = theirs.page_table.shape[1]
            assert torch.equal(mine.page_table[:rows, :used], theirs.page_table)
            for fact in ("context_lens", "query_len"):
                assert torch.equal(getattr(mine, fact)[:rows], getattr(theirs, fact))
    runs = 0 if exact.segments is None else len(exact.segments.runs)
    assert not ours.segments.length[runs:].any()
    assert (ours.segments.adapter[runs:] == -1).all()
    if exact.segments is not None:
        assert torch.equal(ours.segments.start[:runs], exact.segments.start)
        assert torch.equal(ours.segments.length[:runs], exact.segments.length)
        assert max(ours.segments.length) <= ours.segments.longest


def test_a_token_that_is_not_read_yet_is_taken_from_the_draws():
    plan = StepPlan([chunk([1, 2], [0]), chunk([DRAWN], [7, 2], start=5)])
    assert padded(plan).tokens[:3].tolist() == [1, 2, 503]


def test_a_batch_that_is_too_large_for_any_size_is_refused():
    def holds(*chunks):
        return LAYOUT.holds(builder().host(StepPlan(chunks)))

    long = chunk([1] * 97, range(25))
    assert not holds(long)
    assert not holds(*[chunk([1], [0])] * 13)
    assert not holds(*[chunk([1, 2], [0])] * 17)
    assert holds(*[chunk([1, 2], [0], draw=draw())] * 12)
    assert not holds(*[chunk([1, 2], [0], draw=draw())] * 13)
