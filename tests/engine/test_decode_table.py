"""The rows of a captured decode pass say what each chunk says, whatever was in them before."""

import random

import numpy as np
import pytest

from engine.decode_table import (
    ADAPTER,
    COLUMNS,
    CONTEXT,
    LENGTH,
    MIN_P,
    POSITION,
    SLOT,
    SOURCE,
    START,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    UNIFORM,
    DecodeTable,
)
from engine.protocol import Sampling
from engine.step import DRAWN, NO_ADAPTER, Chunk, Draw
from kernels.philox import uniform
from kernels.segments import Segments

PAGE = 4


def chunk(number: int, pages: list[int], start: int, token: int, adapter: int = -1) -> Chunk:
    sampling = Sampling(
        temperature=0.5 * (number % 3), top_p=1 / (1 + number), top_k=number, min_p=0.01 * number
    )
    draw = Draw(sampling=sampling, seed=2**63 - number, position=start, prompt=(), output=())
    return Chunk(
        sequence=number, tokens=[token], start=start, pages=pages, adapter=adapter, draw=draw
    )


def check(table: DecodeTable, chunks: list[Chunk], sources: list[int], rows: int) -> None:
    width = table.fill(chunks, sources, rows)
    packed, floats = table.packed[:rows], table.packed[:rows].view(np.float32)
    for row, (each, source) in enumerate(zip(chunks, sources, strict=True)):
        at, found = each.start, packed[row]
        assert each.draw
        wanted = each.draw.sampling
        assert found[SOURCE] == source
        assert source >= 0 or found[TOKEN] == each.tokens[0]
        assert (found[POSITION], found[CONTEXT]) == (at, at + 1)
        assert found[SLOT] == each.pages[at // PAGE] * PAGE + at % PAGE
        used = at // PAGE + 1
        assert found[COLUMNS : COLUMNS + used].tolist() == list(each.pages[:used])
        assert width >= COLUMNS + used
        assert found[TOP_K] == wanted.top_k
        stored = floats[row, [TEMPERATURE, TOP_P, MIN_P]].tolist()
        assert stored == pytest.approx([wanted.temperature, wanted.top_p, wanted.min_p])
        if wanted.temperature:
            assert floats[row, UNIFORM] == uniform(each.draw.seed, each.draw.position)
    assert (packed[len(chunks) :, SLOT] == -1).all()
    assert (packed[len(chunks) :, CONTEXT] == 0).all()
    runs = Segments.cut([each.adapter for each in chunks], tile=16)
    said = packed[:, START : ADAPTER + 1].tolist()
    assert said == [list(run) for run in runs] + [[0, 0, NO_ADAPTER]] * (rows - len(runs))
    assert LENGTH == START + 1 == ADAPTER - 1


def test_any_course_of_batches_is_entered_as_if_the_table_were_new() -> None:
    draw, table = random.Random(0), DecodeTable(48, 8, PAGE)
    running: dict[int, tuple[list[int], int, int]] = {}
    for step in range(200):
        for number in draw.sample(range(100), 6):
            if number in running and draw.random() < 0.6:
                del running[number]  # it ended, or yields and comes back with other pages
            elif len(running) < 40:
                pages = draw.sample(range(1000), 1 + draw.randrange(3))
                start = draw.randrange(PAGE * (len(pages) - 1), PAGE * len(pages))
                running[number] = (pages, start, draw.randrange(-1, 4))
        chunks = [chunk(n, p, s, token=step, adapter=a) for n, (p, s, a) in running.items()]
        chunks.sort(key=lambda each: each.adapter)
        if chunks:
            sources = [draw.choice([-1, i]) for i in range(len(chunks))]
            check(table, chunks, sources, rows=draw.randrange(len(chunks), 49))
        for number, (pages, start, adapter) in list(running.items()):
            more = [draw.randrange(1000)] if (start + 1) // PAGE == len(pages) else []
            running[number] = ([*pages, *more], start + 1, adapter)
            if start + 2 > 8 * PAGE:
                del running[number]


def test_forty_rows_of_one_adapter_are_three_segments() -> None:
    chunks = [chunk(i, [i], 0, DRAWN, adapter=7) for i in range(40)]
    check(DecodeTable(40, 1, PAGE), chunks, list(range(40)), rows=40)


def test_a_page_that_was_exchanged_while_the_last_one_stayed_is_entered():
    table = DecodeTable(2, 4, PAGE)
    check(table, [chunk(1, [5, 6], 4, 7)], [-1], 1)
    check(table, [chunk(1, [3, 6], 5, 8)], [-1], 1)
