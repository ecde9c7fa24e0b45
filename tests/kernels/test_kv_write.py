import pytest
import torch

from kernels.kv_write import kv_write, kv_write_reference


def pool(pages, heads, page, head_dim, dtype, device):
    """The view of layer 1 of 3."""
    shape = (pages, 3, 2, heads, page, head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)[:, 1]


def tokens(count, heads, head_dim, dtype, device):
    pair = torch.randn(2, count, heads, head_dim, generator=torch.Generator().manual_seed(2))
    return pair.to(device, dtype).unbind(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (1, 80), (8, 16)])
def test_puts_each_token_into_its_slot_and_touches_nothing_else(
    heads, head_dim, page, dtype, device
):
    kv = pool(4, heads, page, head_dim, dtype, device)
    k, v = tokens(7, heads, head_dim, dtype, device)
    last = 4 * page - 1
    slots = torch.tensor([0, page - 1, page, -1, last, 2 * page + 3, -1], device=device)
    expected = kv_write_reference(k, v, kv, slots)
    kv_write(k, v, kv, slots)
    assert torch.equal(kv, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "head_dim", "page"), [(3, 64, 16), (1, 80, 64), (8, 16, 16)])
def test_puts_each_token_into_its_slot_in_8_bits(heads, head_dim, page, dtype, device):
    kv = pool(4, heads, page, head_dim, torch.float32, device).to(torch.float8_e4m3fn)
    sizes = torch.rand(4, 2, heads, page, device=device)
    k, v = tokens(7, heads, head_dim, dtype, device)
    k[3], v[4] = k[3] * 1e-5, v[4] * 1e4
    k[5, :, 1::2] = 0.0
    v[0, 0, 1] = float("nan")
    last = 4 * page - 1
    slots = torch.tensor([0, page - 1, page, 5, last, 2 * page + 3, -1], device=device)
    wanted = sizes.clone()
    expected = kv_write_reference(k, v, kv, slots, wanted)
    kv_write(k, v, kv, slots, sizes)
    assert kv[0, 1, 0, 0, 1].view(torch.uint8) & 0x7F == 0x7F  # NaN
    kv[0, 1, 0, 0] = expected[0, 1, 0, 0] = sizes[0, 1, 0, 0] = wanted[0, 1, 0, 0] = 0.0
    assert torch.equal(sizes, wanted)
    assert torch.equal(kv.view(torch.uint8), expected.view(torch.uint8))


def test_all_slots_absent_write_nothing(device):
    kv = pool(2, 3, 16, 64, torch.bfloat16, device)
    before = kv.clone()
    k, v = tokens(3, 3, 64, torch.bfloat16, device)
    kv_write(k, v, kv, torch.full((3,), -1, dtype=torch.int64, device=device))
    assert torch.equal(kv, before)


def test_takes_views_of_a_fused_projection(device):
    kv = pool(2, 3, 16, 64, torch.float32, device)
    qkv = torch.randn(5, 15 * 64, generator=torch.Generator().manual_seed(3)).to(device)
    k, v = qkv[:, 9 * 64 : 12 * 64].view(5, 3, 64), qkv[:, 12 * 64 :].view(5, 3, 64)
    slots = torch.arange(5, device=device) + 14
    expected = kv_write_reference(k, v, kv, slots)
    kv_write(k, v, kv, slots)
    assert torch.equal(kv, expected)


def test_takes_no_tokens(device):
    k, v = tokens(0, 3, 64, torch.float32, device)
    slots = torch.zeros(0, dtype=torch.int64, device=device)
    kv_write(k, v, pool(1, 3, 16, 64, torch.float32, device), slots)
