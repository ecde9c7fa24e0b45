import pytest
import torch

from kernels import matmul_w4a16 as module
from kernels.launch import KernelArgumentError
from kernels.matmul_w4a16 import matmul_w4a16, matmul_w4a16_parts, matmul_w4a16_reference
from kernels.tuning import Config
from kernels.w4_weight import dequantize_w4, pack_w4, unpack_w4

# rows, columns, group, zeros?: slabs of 64 and 32, padding of both sides, one group, odd groups
WEIGHTS = {
    "one tile": (256, 128, 128, True),
    "half a group at the end": (576, 192, 128, True),
    "group 32": (192, 130, 32, False),
    "group 64": (320, 64, 64, True),
    "one group": (300, 33, 300, True),
    "groups across blocks": (384, 128, 96, True),
    "many blocks": (1280, 128, 128, False),
}
shapes = pytest.mark.parametrize("name", WEIGHTS)


def weight(name, device, *, dtype=torch.float16, integral=False, perm=False):
    rows, columns, group, has_zeros = WEIGHTS[name]
    random = torch.Generator().manual_seed(rows + columns)
    groups = -(-rows // group)
    codes = torch.randint(0, 16, (rows, columns), generator=random, dtype=torch.uint8)
    scales = torch.rand(groups, columns, generator=random) * 0.1 + 0.01
    if integral:
        scales = torch.randint(1, 3, (groups, columns), generator=random).float()
    zeros = torch.randint(0, 17, (groups, columns), generator=random, dtype=torch.int16)
    order = torch.randperm(rows, generator=random) if perm else None
    return (codes, scales.to(dtype), zeros if has_zeros else None, order), pack_w4(
        codes.to(device),
        scales.to(device, dtype),
        zeros.to(device) if has_zeros else None,
        group=group,
        perm=order,
    )


def batch(rows, columns, dtype, device):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)).to(device, dtype)


def relative_error(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@shapes
def test_unpacks_to_the_codes_that_were_packed(name, device):
    (codes, *_), w = weight(name, device)
    assert torch.equal(unpack_w4(w).cpu(), codes)


@shapes
def test_dequantizes_to_the_definition_in_checkpoint_order(name, device):
    (codes, scales, zeros, perm), w = weight(name, device, perm=True)
    group = torch.arange(w.rows) // w.group
    zero = 8 if zeros is None else zeros[group].float()
    expected = torch.empty(w.rows, w.columns)
    expected[perm] = (codes.float() - zero) * scales.float()[group]
    assert torch.equal(dequantize_w4(w, dtype=torch.float32).cpu(), expected)


@shapes
@pytest.mark.parametrize("rows", [1, 17, 65])
@pytest.mark.parametrize("deterministic", [False, True])
def test_matches_the_reference(name, rows, deterministic, device):
    _, w = weight(name, device, perm=True)
    x = batch(rows, w.rows, torch.float16, device)
    bias = batch(1, w.columns, torch.float16, device)[0]
    actual = matmul_w4a16(x, w, bias=bias, deterministic=deterministic)
    assert relative_error(actual, matmul_w4a16_reference(x, w, bias=bias)) < 1e-3


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["half a group at the end", "many blocks"])
@pytest.mark.parametrize("perm", [False, True])
def test_its_parts_add_up_to_it(name, perm, deterministic, device):
    _, w = weight(name, device, perm=perm)
    x = batch(5, w.rows, torch.float16, device)
    bias = batch(1, w.columns, torch.float16, device)[0]
    parts = matmul_w4a16_parts(x, w, bias=bias, deterministic=deterministic)
    assert parts.shape[1:] == (5, w.columns)
    assert parts.dtype == (torch.float16 if parts.shape[0] == 1 else torch.float32)
    assert relative_error(parts.float().sum(0), matmul_w4a16_reference(x, w, bias=bias)) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_takes_every_type_of_x(dtype, device):
    _, w = weight("half a group at the end", device)
    x = batch(3, w.rows, dtype, device)
    limit = 1e-5 if dtype == torch.float32 else 8e-3
    assert relative_error(matmul_w4a16(x, w), matmul_w4a16_reference(x, w)) < limit


@shapes
@pytest.mark.parametrize("post_scale", [False, True])
def test_is_exact_on_integers(name, post_scale, device, monkeypatch):
    config = Config(rows=16, columns=128, post_scale=post_scale, stages=3)
    monkeypatch.setattr(module, "choose", lambda *_: config)
    _, w = weight(name, device, integral=True)
    x = torch.randint(-1, 2, (5, w.rows), generator=torch.Generator().manual_seed(3))
    expected = x.double() @ dequantize_w4(w, dtype=torch.float64).cpu()
    actual = matmul_w4a16(x.to(device, torch.float32), w)
    assert torch.equal(actual.cpu().double(), expected)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_any_number_of_parts_gives_the_same_product(parts, device, monkeypatch):
    monkeypatch.setattr(module, "matmul_splits", lambda *_: parts)
    _, w = weight("many blocks", device)
    x = batch(3, w.rows, torch.float16, device)
    bias = batch(1, w.columns, torch.float16, device)[0]
    expected = matmul_w4a16_reference(x, w, bias=bias)
    assert relative_error(matmul_w4a16(x, w, bias=bias), expected) < 1e-3


@shapes
def test_many_rows_take_the_dense_product(name, device, monkeypatch):
    monkeypatch.setattr(module, "DEQUANTIZE_ABOVE", 4)
    _, w = weight(name, device, perm=True)
    x = batch(5, w.rows, torch.float16, device)
    assert relative_error(matmul_w4a16(x, w), matmul_w4a16_reference(x, w)) < 2e-3


def test_a_row_does_not_depend_on_its_neighbours(device):
    _, w = weight("half a group at the end", device)
    x = batch(65, w.rows, torch.float16, device)
    if not module.use_triton(x):
        pytest.skip("a CPU engine multiplies dense weights in tiles of its own")
    together = matmul_w4a16(x, w, deterministic=True)
    for rows in (1, 17, 33):
        part = matmul_w4a16(x[20 : 20 + rows], w, deterministic=True)
        assert torch.equal(together[20 : 20 + rows], part)


def test_writes_into_rows_of_a_wider_output(device):
    _, w = weight("one tile", device)
    wide = torch.zeros(3, 256, dtype=torch.float16, device=device)
    x = batch(3, w.rows, torch.float16, device)
    matmul_w4a16(x, w, out=wide[:, 128:])
    assert torch.equal(wide[:, 128:], matmul_w4a16(x, w))
    assert not wide[:, :128].any()


def test_takes_no_rows(device):
    _, w = weight("one tile", device)
    assert matmul_w4a16(batch(0, 256, torch.float16, device), w).shape == (0, 128)


def test_refuses_x_of_another_width_and_a_group_it_cannot_cut(device):
    (codes, scales, _, _), w = weight("one tile", device)
    with pytest.raises(KernelArgumentError, match="columns"):
        matmul_w4a16(batch(1, 255, torch.float16, device), w)
    with pytest.raises(KernelArgumentError, match="group"):
        pack_w4(codes, scales.repeat(8, 1)[:16], None, group=16)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 32, 64, 128, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_assembly_is_exact_on_integers_a_thousand_times(rows, dtype, device):
    rows_k, columns = 4096, 512
    random = torch.Generator(device=device).manual_seed(rows)

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=random, device=device)

    codes = integers(0, 16, rows_k, columns)
    groups = rows_k // 128
    w = pack_w4(
        codes,
        integers(1, 3, groups, columns).to(dtype),
        integers(0, 17, groups, columns),
        group=128,
    )
    x = integers(-1, 2, rows, rows_k).to(dtype)
    exact = x.double() @ dequantize_w4(w, dtype=torch.float64)
    first = matmul_w4a16(x, w)
    assert torch.equal(first, exact.to(dtype))
    assert all(torch.equal(matmul_w4a16(x, w), first) for _ in range(1000))
