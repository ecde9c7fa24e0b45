"""What a captured pass that verifies drafts reads is the plan, and padding that does nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.batch import StepInputs
from engine.decode_table import COLUMNS, TEMPERATURE, TOP_K, UNIFORM
from engine.graphs import TableLayout, table_inputs
from engine.protocol import Sampling
from engine.speculation.verify_table import VerifyTable
from engine.step import Chunk, StepPlan
from kernels.philox import uniform
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.rig import Rig, chunk, draw

QUERIES, ROWS = 4, 4  # tokens of a sequence at most, sequences of the bucket
SHAPE = Shape(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=16, layers=2, vocab=64)
WARM = Sampling(temperature=0.5, top_k=9)


def verifying(tokens: list[int], pages: list[int], start: int, **facts: object) -> Chunk:
    draws = [draw(WARM, seed=start, position=i) for i in range(len(tokens))]
    return chunk(tokens, pages, start=start, draw=draws[0], drafts=draws[1:], **facts)


def inputs(table: VerifyTable, chunks: list[Chunk], *, adapted: bool = False) -> StepInputs:
    width = table.fill(chunks, ROWS * QUERIES)
    assert width == COLUMNS + max(-(-(c.start + len(c.tokens)) // 4) for c in chunks)
    packed = torch.from_numpy(table.packed.copy())
    rows = torch.arange(ROWS * QUERIES, dtype=torch.int32)
    layout = TableLayout(packed, rows, rows[::QUERIES].contiguous(), ROWS, QUERIES)
    columns = packed[: ROWS * QUERIES, :COLUMNS].t().contiguous()
    return table_inputs(layout, columns, torch.zeros(8, dtype=torch.int64), adapted=adapted)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    path: Path = write_checkpoint(tmp_path_factory.mktemp("v"), SHAPE, Layout("gptq", 32)).path
    return Rig(path, page_tokens=4)


def test_a_padded_pass_computes_what_the_plan_does(rig: Rig) -> None:
    prompts, found = [[5, 6, 7, 8, 9], [11] * 9, [3]], list[Chunk]()
    for prompt, drafts in zip(prompts, ([20, 21, 22], [], [30]), strict=True):
        pages = rig.pages(len(prompt) + QUERIES)
        rig.launch([chunk(prompt, pages, draw=draw())])
        found.append(verifying([9, *drafts], pages, len(prompt)))
    exact = rig.logits(found)
    table = VerifyTable(ROWS, 16, 4, queries=QUERIES)
    inputs(table, [verifying([1] * 4, rig.pages(60), 40)] * 4)  # what was there before
    padded = inputs(table, found)
    with torch.inference_mode():
        hidden = rig.model(padded, rig.memory.layers, None)
        logits = rig.model.head(hidden)
    live = [i * QUERIES + j for i, each in enumerate(found) for j in range(len(each.tokens))]
    torch.testing.assert_close(logits[live], exact, rtol=1e-4, atol=1e-4)
    dead = sorted(set(range(ROWS * QUERIES)) - set(live))
    assert (padded.slots[dead] == -1).all()


def test_segments_cover_the_rows_of_every_adapter(rig: Rig) -> None:
    table = VerifyTable(ROWS, 16, 4, queries=QUERIES)
    found = [verifying([1, 2], [3, 4], 5, adapter=row) for row in (7, 7, -1, 2)]
    segments = inputs(table, found, adapted=True).segments
    assert segments is not None
    rows = np.full(ROWS * QUERIES, -9)
    for start, length, adapter in zip(
        segments.start.tolist(), segments.length.tolist(), segments.adapter.tolist(), strict=True
    ):
        rows[start : start + length] = adapter
    assert rows.tolist() == [7] * 8 + [-1] * 4 + [2] * 4
    assert max(segments.length.tolist()) <= segments.longest


def test_every_draw_has_its_own_random_number(rig: Rig) -> None:
    table = VerifyTable(ROWS, 16, 4, queries=QUERIES)
    table.fill([verifying([1, 2, 3], [3, 4], 5), verifying([1, 2], [6, 7], 4)], ROWS * QUERIES)
    floats = table.packed.view(np.float32)
    for row, seed, position in ((0, 5, 0), (1, 5, 1), (2, 5, 2), (4, 4, 0), (5, 4, 1)):
        assert floats[row, UNIFORM] == np.float32(uniform(seed, position))
        assert (floats[row, TEMPERATURE], table.packed[row, TOP_K]) == (0.5, 9)
    assert floats[3, TEMPERATURE] == 0.0


def test_a_plan_with_drafts_gives_what_it_draws_row_by_row(rig: Rig) -> None:
    """The eager pass, whose result the captured one has to have: kept as far as draws agree."""
    prompt = [5, 6, 7, 8, 9]
    pages = rig.pages(20)
    (first,) = rig.launch([chunk(prompt, pages, draw=draw())])
    assert first.token is not None
    known, truth = [first.token], list[int]()
    for _ in range(3):
        (drawn,) = rig.launch([chunk(known[-1:], pages, start=4 + len(known), draw=draw())])
        assert drawn.token is not None
        known.append(drawn.token)
        truth.append(drawn.token)
    wrong = (truth[2] + 1) % 64
    for drafts, kept in ((truth[:2], 2), ([truth[0], wrong], 1), ([wrong, truth[1]], 0)):
        plan = StepPlan([verifying_greedy([first.token, *drafts], pages, 5)])
        (drawn,) = rig.runner.launch(plan).wait().drawn
        found = [row.token for row in (drawn, *drawn.further)]
        assert found == truth[: kept + 1]


def verifying_greedy(tokens: list[int], pages: list[int], start: int) -> Chunk:
    draws = [draw(position=i) for i in range(len(tokens))]
    return chunk(tokens, pages, start=start, draw=draws[0], drafts=draws[1:])
