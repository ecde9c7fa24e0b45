"""Adapters come back out of the pool as they went in, at any rank, in any rows and pages."""

from dataclasses import replace

import pytest
import torch

from adapters.pack import Factor
from engine.adapter_table import FIRST_ROWS
from engine.errors import AdapterUnusable
from engine.placement import SITES
from kernels.lora_table import A_ROWS, ABSENT, UNIT, a_stride, b_stride
from tests.engine.checkpoints import Shape, write_checkpoint
from tests.engine.factors import random_adapter
from tests.engine.rig import Rig

SHAPE = Shape(hidden=72, inner=200, heads=9, kv_heads=3, head_dim=16)  # nothing a multiple of 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("m"), SHAPE).path


@pytest.fixture
def rig(path):
    return Rig(path, pages=200)


def read_back(rig, row, layer, module):
    """A and B of one module, found through the device table."""
    name = next(site for site, modules in SITES.items() if module in modules)
    site, number = rig.table.sites[layer][name], SITES[name].index(module)
    rank = int(site.ranks[row, number])
    if rank == 0:
        return None
    a = [
        rig.memory.flat[unit * UNIT :][: min(A_ROWS, rank - A_ROWS * i) * a_stride(site.width)]
        for i, unit in enumerate(site.a_units[row, number, : -(-rank // A_ROWS)].tolist())
    ]
    a = torch.cat([block.view(-1, a_stride(site.width))[:, : site.width] for block in a])
    b = []
    for block, owner in enumerate(site.block_slice.tolist()):
        if owner == number:
            rows = int(site.block_rows[block])
            start = int(site.b_units[row, block]) * UNIT
            stored = rig.memory.flat[start : start + rows * b_stride(rank)].view(rows, -1)
            assert not stored[:, rank:].any(), "the padding of B is zero"
            b.append(stored[:, :rank])
    return Factor(a, torch.cat(b))


def check(rig, row, packed):
    for layer in range(rig.spec.num_layers):
        for module in (m for modules in SITES.values() for m in modules):
            found, wanted = read_back(rig, row, layer, module), packed.factors.get((layer, module))
            assert (found is None) == (wanted is None)
            if wanted is not None:
                assert torch.equal(found.a, wanted.a)
                assert torch.equal(found.b, wanted.b)


@pytest.mark.parametrize("rank", [1, 8, 15, 16, 17, 40, 64])
def test_an_adapter_is_found_where_the_table_points(rig, rank):
    packed = random_adapter(rig.spec, rank)
    rig.load(2, packed)
    check(rig, 2, packed)


def test_modules_and_layers_without_factors_have_rank_0(rig):
    packed = random_adapter(rig.spec, 5, modules=["k_proj", "up_proj"], layers=[1])
    rig.load(0, packed)
    check(rig, 0, packed)


def test_adapters_do_not_disturb_each_other_nor_the_pages_between(rig):
    kv = rig.take(3)
    rig.memory.pool[kv] = 7.0
    packed = {row: random_adapter(rig.spec, rank, seed=row) for row, rank in enumerate((3, 30, 16))}
    for row, adapter in packed.items():
        rig.load(row, adapter)
    for row, adapter in packed.items():
        check(rig, row, adapter)
    assert bool((rig.memory.pool[kv] == 7.0).all())


def test_rows_and_ranks_grow_without_losing_what_is_there(rig):
    first, late = random_adapter(rig.spec, 8, seed=1), random_adapter(rig.spec, 50, seed=2)
    rig.load(0, first)
    rig.load(FIRST_ROWS * 2 + 3, late)
    assert rig.table.rows > FIRST_ROWS * 2 + 3
    assert rig.table.rank_capacity == 64
    check(rig, 0, first)
    check(rig, FIRST_ROWS * 2 + 3, late)


def test_a_cleared_row_is_an_adapter_of_rank_0(rig):
    rig.load(1, random_adapter(rig.spec, 8))
    rig.adapters.clear(1)
    assert all(not site.ranks[1].any() for sites in rig.table.sites for site in sites.values())


def test_a_row_placed_again_forgets_its_former_adapter(rig):
    rig.load(1, random_adapter(rig.spec, 40, seed=1))
    after = random_adapter(rig.spec, 2, seed=2, modules=["v_proj"])
    rig.load(1, after)
    check(rig, 1, after)
    assert int(rig.table.sites[0]["qkv"].a_units[1, 2, 1]) == ABSENT


def test_an_adapter_of_another_shape_is_unusable(rig):
    packed = random_adapter(rig.spec, 4)
    odd = Factor(torch.zeros(4, 72), torch.zeros(8, 4))
    wrong = replace(packed, factors={**packed.factors, (0, "down_proj"): odd})
    with pytest.raises(AdapterUnusable, match="down_proj"):
        rig.adapters.lay_out(wrong)


def test_a_rank_whose_blocks_exceed_a_page_is_unusable_not_fatal(rig):
    with pytest.raises(AdapterUnusable, match="larger pages"):
        rig.adapters.lay_out(random_adapter(rig.spec, 200))


def test_the_wrong_number_of_pages_is_refused(rig):
    laid = rig.adapters.lay_out(random_adapter(rig.spec, 4))
    with pytest.raises(AdapterUnusable, match="pages"):
        rig.adapters.place(0, laid, [])
