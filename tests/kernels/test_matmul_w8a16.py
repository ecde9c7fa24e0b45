from dataclasses import replace

import pytest
import torch

from kernels.launch import KernelArgumentError
from kernels.matmul_w8a16 import matmul_w8a16, matmul_w8a16_parts, matmul_w8a16_reference
from kernels.tuning import DEQUANTIZE_ABOVE
from kernels.w8_weight import W8Weight, dequantize_w8
from tests.kernels.tolerance import assert_near


def random_weight(K, N, *, kind="float", group=None, zeros=False, perm=False, device="cpu"):
    random = torch.Generator().manual_seed(K + N)
    group = group or K
    G = -(-K // group)
    if kind == "float":
        values = (torch.randn(N, K, generator=random) * 60).to(torch.float8_e4m3fn)
    else:
        values = torch.randint(-128, 128, (N, K), generator=random, dtype=torch.int8)
    scales = (torch.rand(G, N, generator=random) + 0.5) * K**-0.5 / 60
    offsets = torch.randint(-9, 10, (G, N), generator=random, dtype=torch.int16)
    return W8Weight(
        values=values.to(device),
        scales=scales.to(device),
        group=group,
        zeros=offsets.to(device) if zeros else None,
        perm=torch.randperm(K, generator=random).to(device) if perm else None,
    )


def inputs(M, K, dtype, device):
    return torch.randn(M, K, generator=torch.Generator().manual_seed(M)).to(device, dtype)


CASES = {
    "fp8": {"kind": "float"},
    "fp8 in blocks": {"kind": "float", "group": 128},
    "int8": {"kind": "int"},
    "int8 in groups, with zeros": {"kind": "int", "group": 32, "zeros": True},
    "int8, act-order": {"kind": "int", "group": 64, "perm": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("M", "K", "N", "dtype"),
    [
        (1, 256, 64, torch.bfloat16),
        (17, 288, 200, torch.float32),
        (3, 160, 72, torch.float16),
        (65, 128, 33, torch.bfloat16),
    ],
)
def test_matches_the_reference(case, M, K, N, dtype, device):
    w, x = random_weight(K, N, **CASES[case], device=device), inputs(M, K, dtype, device)
    bias = inputs(1, N, dtype, device)[0]
    expected = matmul_w8a16_reference(x, w, bias=bias)
    assert_near(matmul_w8a16(x, w, bias=bias), expected, dtype)


@pytest.mark.parametrize("case", CASES)
def test_many_rows_are_multiplied_with_the_dequantised_weight(case, device):
    w = random_weight(96, 40, **CASES[case], device=device)
    x = inputs(DEQUANTIZE_ABOVE + 1, 96, torch.float32, device)
    assert_near(matmul_w8a16(x, w), matmul_w8a16_reference(x, w), torch.float32)


def test_integers_are_multiplied_exactly(device):
    K, N = 256, 64
    random = torch.Generator().manual_seed(0)
    w = random_weight(K, N, kind="int", device=device)
    w = replace(w, scales=torch.ones_like(w.scales))
    x = torch.randint(-4, 5, (5, K), generator=random).to(device, torch.bfloat16)
    y = matmul_w8a16(x, w, dtype=torch.float32)
    assert torch.equal(y.cpu().double(), x.cpu().double() @ w.values.cpu().double().t())


def test_every_code_of_e4m3_is_what_it_says(device):
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.where(codes.float().isfinite(), codes.float(), 0.0).to(torch.float8_e4m3fn)
    values = codes.repeat(32, 1)[:, :256].contiguous().to(device)
    scales = torch.ones(1, 32, device=device)
    w = W8Weight(values=values, scales=scales, group=256)
    x = torch.eye(256, device=device, dtype=torch.bfloat16)
    y = matmul_w8a16(x, w, dtype=torch.float32)
    assert torch.equal(y[:, 0].cpu(), codes.float())


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_add_up_to_the_product(parts, device, monkeypatch):
    monkeypatch.setattr("kernels.matmul_w8a16.matmul_splits", lambda *_: parts)
    w = random_weight(384, 70, kind="float", group=128, device=device)
    x, bias = inputs(5, 384, torch.bfloat16, device), inputs(1, 70, torch.bfloat16, device)[0]
    planes = matmul_w8a16_parts(x, w, bias=bias)
    assert planes.shape[1:] == (5, 70)
    total = planes.float().sum(0)
    expected = matmul_w8a16_reference(x.float(), w, bias=bias)
    assert_near(total, expected, torch.bfloat16)


@pytest.mark.parametrize("case", ["fp8 in blocks", "int8"])
def test_a_row_does_not_depend_on_its_neighbours(case, device):
    w = random_weight(256, 100, **CASES[case], device=device)
    x = inputs(70, 256, torch.bfloat16, device)
    whole = matmul_w8a16(x, w, deterministic=True)
    assert torch.equal(matmul_w8a16(x[66:67], w, deterministic=True), whole[66:67])


def test_takes_no_rows_and_refuses_what_does_not_fit(device):
    w = random_weight(64, 32, device=device)
    assert matmul_w8a16(inputs(0, 64, torch.float32, device), w).shape == (0, 32)
    with pytest.raises(KernelArgumentError, match="63 columns"):
        matmul_w8a16(inputs(2, 63, torch.float32, device), w)
    with pytest.raises(KernelArgumentError, match="scales"):
        replace(w, scales=w.scales[:, :5])


def test_a_weight_is_what_its_parts_say():
    w = random_weight(64, 3, kind="int", group=32, zeros=True)
    assert w.zeros is not None
    expected = (w.values[1, 40].float() - w.zeros[1, 1]) * w.scales[1, 1]
    assert dequantize_w8(w, dtype=torch.float32)[1, 40] == expected


@pytest.mark.gpu
def test_a_thousand_runs_give_the_same_bits(device):
    w = random_weight(4096, 6144, kind="float", group=128, device=device)
    x = inputs(64, 4096, torch.bfloat16, device)
    first = matmul_w8a16(x, w)
    assert all(torch.equal(matmul_w8a16(x, w), first) for _ in range(1000))
