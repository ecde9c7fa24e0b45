"""In deterministic mode a row's logits are the same bits whoever shares the batch and however
its prompt is cut."""

import random

import pytest
import torch

from engine.layers.linear import Dense, Prepacked
from engine.layers.tiling import CANDIDATES, ROW_BY_ROW, Tiled, find_tiling
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig, chunk

pytestmark = pytest.mark.slow

SHAPE = Shape(hidden=576, inner=320, heads=9, kv_heads=3, head_dim=64, layers=2, vocab=512)
RANKS = (3, 16, 21)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("m"), SHAPE, Layout("gptq", 32)).path


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def rig(path, request):
    rig = Rig(path, dtype=request.param, deterministic=True, pages=400)
    for row, rank in enumerate(RANKS):
        rig.load(row, random_adapter(rig.spec, rank, seed=row, dtype=request.param))
    return rig


def tokens(count, seed):
    return torch.randint(3, 512, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def whole(rig, prompt, adapter):
    return rig.logits([chunk(prompt, rig.pages(len(prompt)), adapter=adapter)])


@pytest.mark.parametrize("seed", range(3))
def test_random_mixes_and_cuts_do_not_change_a_bit(rig, seed):
    """Six sequences computed in random chunks, together, against each alone in one piece."""
    dice = random.Random(seed)
    free = list(rig._free)
    prompts = [tokens(dice.randint(2, 70), seed=10 * seed + i) for i in range(6)]
    adapters = sorted(dice.choice([-1, 0, 1, 2]) for _ in prompts)
    wanted = [whole(rig, p, a) for p, a in zip(prompts, adapters, strict=True)]
    pages, done = [rig.pages(len(prompt)) for prompt in prompts], [0] * 6
    while any(at < len(prompt) for at, prompt in zip(done, prompts, strict=True)):
        chunks, spans = [], []
        for i, prompt in enumerate(prompts):
            count = min(dice.choice([0, 1, 1, 5, 17, 40]), len(prompt) - done[i])
            if count:
                part = prompt[done[i] : done[i] + count]
                chunks.append(chunk(part, pages[i], start=done[i], adapter=adapters[i]))
                spans.append((i, done[i], done[i] + count))
                done[i] += count
        if chunks:
            logits = rig.logits(chunks).split([end - start for _, start, end in spans])
            for (i, start, end), found in zip(spans, logits, strict=True):
                assert torch.equal(found, wanted[i][start:end])
    rig._free[:] = free


@pytest.mark.parametrize("active", [1, 16, 20])
def test_rows_before_an_adapter_is_invoked_are_the_base_s_bits(rig, active):
    prompt = tokens(37, seed=98)
    plain = whole(rig, prompt, -1)
    with_it = chunk(prompt, rig.pages(37), adapter=2, active_from=active)
    together = rig.logits([chunk(tokens(5, seed=1), rig.pages(5), adapter=0), with_it])[5:]
    assert torch.equal(together[:active], plain[:active])
    assert not torch.equal(together[active], plain[active])
    pages, at = rig.pages(37), 0
    for end in (active - 1, active, active + 1, 37):
        if end > at:
            part = chunk(prompt[at:end], pages, start=at, adapter=2, active_from=active)
            assert torch.equal(rig.logits([part]), together[at:end])
            at = end


def test_base_rows_are_the_bits_of_an_engine_without_adapters(rig):
    prompt = tokens(23, seed=99)
    alone = whole(rig, prompt, -1)
    chunks = [chunk(prompt, rig.pages(23))]
    chunks += [chunk(tokens(9, seed=n), rig.pages(9), adapter=n) for n in range(3)]
    assert torch.equal(rig.logits(chunks)[:23], alone)


@pytest.mark.parametrize("make", [Dense, Prepacked])
@pytest.mark.parametrize("size", [(576, 960), (192, 576), (64, 8), (1536, 100)], ids=str)
def test_a_found_tiling_keeps_rows_apart(make, size):
    dtype = torch.bfloat16 if make is Prepacked else torch.float32
    if make is Prepacked and not Prepacked.usable(dtype):
        pytest.skip("this build of torch cannot prepack")
    linear = make(torch.randn(size[1], size[0]).to(dtype))
    tiled = Tiled(linear, find_tiling(linear, torch.device("cpu")))
    x = torch.randn(97, size[0]).to(dtype)
    together = tiled(x)
    for rows in ([0], [96], [5, 3], list(range(40, 97)), list(range(96, -1, -1))):
        assert torch.equal(tiled(x[rows]), together[rows])


class Fickle:
    """A Linear whose rounding depends on the number of rows, as libraries' does."""

    size, dtype = (8, 8), torch.float32

    def __call__(self, x):
        return x + 0.001 * x.shape[0] + torch.arange(x.shape[0]).unsqueeze(1)


def test_without_any_invariant_tile_rows_go_one_by_one():
    assert find_tiling(Fickle(), torch.device("cpu")) == ROW_BY_ROW


@pytest.mark.parametrize("tiling", [*CANDIDATES, ROW_BY_ROW], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 64, 65])
def test_tiles_compute_the_whole_product(tiling, rows):
    linear, x = Dense(torch.randn(24, 32)), torch.randn(rows, 32)
    torch.testing.assert_close(Tiled(linear, tiling)(x), linear(x), rtol=1e-4, atol=1e-5)


def test_prepacking_changes_no_bit():
    if not Prepacked.usable(torch.bfloat16):
        pytest.skip("this build of torch cannot prepack")
    weight, bias = torch.randn(960, 576).bfloat16(), torch.randn(960).bfloat16()
    for rows in (1, 8, 33):
        x = torch.randn(rows, 576).bfloat16()
        assert torch.equal(Prepacked(weight)(x), Dense(weight)(x))
        torch.testing.assert_close(Prepacked(weight, bias)(x), Dense(weight, bias)(x))
