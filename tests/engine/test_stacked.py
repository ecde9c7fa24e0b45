"""Adapters side by side give every row what the kernels give it."""

import pytest
import torch

from engine.layers.stacked import Stacks
from kernels.lora_expand import lora_expand
from kernels.lora_shrink import lora_shrink
from kernels.segments import Segments
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig

SHAPE = Shape(hidden=72, inner=200, heads=9, kv_heads=3, head_dim=16)
WIDTHS = {"qkv": (72, 240), "o": (144, 72), "gate_up": (72, 400), "down": (200, 72)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("m"), SHAPE).path


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def rig(path, request):
    rig = Rig(path, pages=200, dtype=request.param)
    loads = {0: (4, ["q_proj", "v_proj"]), 2: (20, ["up_proj", "k_proj"]), 5: (16, ["down_proj"])}
    for row, (rank, modules) in loads.items():
        rig.load(
            row, random_adapter(rig.spec, rank, seed=row, modules=modules, dtype=request.param)
        )
    return rig


def products(rig, adapters, site, layer):
    """The output of a site, by stack and by kernels, from the same x and y."""
    segments = Segments.of_rows(adapters, "cpu")
    K, N = WIDTHS[site]
    x, y = (torch.randn(len(adapters), n).to(rig.memory.pool.dtype) for n in (K, N))
    stacked, wanted = y.clone(), y.clone()
    Stacks(rig.table, rig.memory.flat).rows(segments).add(x, stacked, layer, site)
    table = rig.table.sites[layer][site]
    lora_expand(
        lora_shrink(x, rig.memory.flat, table, segments), rig.memory.flat, table, segments, wanted
    )
    return y, stacked, wanted


@pytest.mark.parametrize("site", WIDTHS)
@pytest.mark.parametrize("adapters", [[0], [2, 2, 5], [-1, 0, 0, 2, -1, 5, 0]], ids=str)
def test_rows_get_their_own_adapter(rig, site, adapters):
    before, stacked, wanted = products(rig, adapters, site, layer=1)
    close = 1e-5 if stacked.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(stacked, wanted, rtol=close, atol=close)
    base = [row for row, adapter in enumerate(adapters) if adapter < 0]
    assert torch.equal(stacked[base], before[base])


def rows(stacks, *adapters):
    return stacks.rows(Segments.of_rows(adapters, "cpu"))


def test_a_stack_serves_any_batch_whose_adapters_it_has(rig):
    stacks = Stacks(rig.table, rig.memory.flat)
    whole = rows(stacks, 0, 2, 5).stack
    assert rows(stacks, 2, -1).stack is whole
    assert rows(stacks, 5, 0).stack is whole


def test_a_stack_does_not_outlive_a_change_of_residency(rig):
    stacks = Stacks(rig.table, rig.memory.flat)
    before = rows(stacks, 0, 2).stack
    rig.adapters.clear(5)
    after = rows(stacks, 0, 2).stack
    assert after is not before
    assert rows(stacks, 0, 2).stack is after


def test_a_stack_that_would_be_large_is_left_to_the_kernels(rig, monkeypatch):
    monkeypatch.setattr("engine.layers.stacked.MAX_BYTES", 1000)
    assert rows(Stacks(rig.table, rig.memory.flat), 0, 2) is None


def test_a_matrix_that_is_not_finite_is_left_to_the_kernels(rig):
    broken = random_adapter(rig.spec, 4, dtype=rig.memory.pool.dtype)
    broken.factors[1, "o_proj"].b[3, 0] = float("inf")
    rig.load(1, broken)
    stacks = Stacks(rig.table, rig.memory.flat)
    assert rows(stacks, 0, 1) is None
    assert rows(stacks, 0, 2) is not None
