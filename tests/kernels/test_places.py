"""What all layers of a pass share on a CPU: places found in one layer hold in every other."""

import pytest
import torch

from kernels.kv_write import kv_write_reference
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.places import NewTokens, SeenKeys
from kernels.rope import rope_reference
from tests.kernels.tolerance import assert_near

LAYERS, PAGES, KVH, PS, D, QH = 3, 7, 2, 16, 8, 6


def layers(seed=0):
    """Views of one pool whose pages end with memory of somebody else."""
    random = torch.Generator().manual_seed(seed)
    tile = PS * D
    pool = torch.randn((PAGES, (LAYERS * 2 * KVH + 3) * tile), generator=random)
    kv = pool[:, : LAYERS * 2 * KVH * tile].view(PAGES, LAYERS, 2, KVH, PS, D)
    return [kv[:, layer] for layer in range(LAYERS)]


@pytest.mark.parametrize("slots", [[5, 40, 111], [5, -1, 111], [-1, -1, -1]])
def test_new_tokens_of_one_layer_are_turned_and_written_in_another(slots):
    kv, positions = layers(), torch.tensor([0, 3, 9])
    table = torch.randn((10, D), generator=torch.Generator().manual_seed(1))
    heads = torch.randn((3, QH + 2 * KVH, D), generator=torch.Generator().manual_seed(2))
    new = NewTokens.of(kv[0], positions, torch.tensor(slots), table)
    q, k = rope_reference(heads[:, :QH], heads[:, QH:-KVH], positions, table)
    expected = kv_write_reference(k, heads[:, -KVH:], kv[2], torch.tensor(slots))
    other = kv[1].clone()
    new.turn(heads[:, :-KVH])
    new.write(kv[2], heads[:, QH:])
    torch.testing.assert_close(heads[:, :QH], q)
    torch.testing.assert_close(kv[2], expected)
    assert torch.equal(kv[1], other)


def narrow_layers():
    """The same, with pages of 8 bits and magnitudes behind them."""
    pool = torch.full((PAGES, (LAYERS * 2 * KVH + 8) * PS * D), 0x7F, dtype=torch.uint8)
    first = LAYERS * 2 * KVH * PS
    kv = pool[:, : first * D].view(torch.float8_e4m3fn).view(PAGES, LAYERS, 2, KVH, PS, D)
    sizes = pool[:, first * D : first * (D + 4)].view(torch.float32)
    sizes = sizes.view(PAGES, LAYERS, 2, KVH, PS)
    return [(kv[:, layer], sizes[:, layer]) for layer in range(LAYERS)]


def test_what_is_written_in_8_bits_is_read_from_there():
    layer, other = narrow_layers()[2], narrow_layers()[1]
    table = torch.randn((10, D), generator=torch.Generator().manual_seed(1))
    heads = torch.randn((3, 2 * KVH, D), generator=torch.Generator().manual_seed(2))
    slots = torch.tensor([3 * PS, -1, 5 * PS + 1])
    new = NewTokens.of(layer[0], torch.tensor([0, 0, 1]), slots, table)
    new.write(layer[0], heads, layer[1])
    pages, lengths = torch.tensor([[3], [5]]), torch.tensor([1, 2])
    seen = SeenKeys.of(other[0], pages, lengths, torch.tensor([0, 1]))
    k, v = seen.read(*layer, torch.float32)
    assert k[1, :, 0].isnan().all()  # never written
    for got, wanted in ((k[0, :, 0], heads[0, :KVH]), (v[1, :, 1], heads[2, KVH:])):
        torch.testing.assert_close(got, wanted, rtol=0.07, atol=0.02)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0, 1], [4, 0, 3]])
def test_keys_of_one_layer_are_read_in_another_and_those_of_others_never(rows, window):
    kv, lengths = layers(), torch.tensor([17, 1, 48], dtype=torch.int32)
    pages = torch.tensor([[3, 1, 0], [5, 0, 0], [2, 4, 6]], dtype=torch.int32)
    kv[2][1, :, :, 1:] = kv[2][5, :, :, 1:] = kv[2][0] = torch.nan  # past the ends, or nobody's
    q, at = torch.randn(max(rows) + 1, QH, D), torch.tensor(rows, dtype=torch.int32)
    out, expected = torch.full_like(q, 7.0), torch.full_like(q, 7.0)
    seen = SeenKeys.of(kv[0], pages, lengths, at)
    paged_decode(q, kv[2], pages, lengths, rows=at, scale=0.3, out=out, window=window, seen=seen)
    paged_decode_reference(
        q, kv[2], pages, lengths, rows=at, scale=0.3, out=expected, window=window
    )
    assert_near(out, expected, torch.float32)
