"""Every 4-bit layout unpacks to the weight it was made from, and nothing else is unpacked."""

from dataclasses import replace

import pytest
import torch

from engine.errors import CheckpointInvalid
from engine.quant.configs import read_scheme
from engine.quant.formats import PackedTensors, unpack
from engine.quant.schemes import Claim
from kernels.w4_weight import dequantize_w4
from tests.engine.checkpoints import AWQ_ORDER, Layout, pack_words, quantised

GPTQ = [
    Layout("gptq", group, symmetric, zeros, act_order, dtype)
    for group in (32, 64, 128, -1)
    for symmetric in (False, True)
    for zeros, dtype in (("v1", torch.float16), ("v2", torch.bfloat16))
    for act_order in (False, True)
]
EIGHT_BITS = [
    Layout("gptq", group, symmetric, zeros, act_order, bits=8)
    for group, act_order in ((32, True), (64, False), (128, True), (-1, False))
    for symmetric in (False, True)
    for zeros in ("v1", "v2")
]
AWQ = [
    Layout("awq", group, symmetric, dtype=dtype)
    for group in (32, 64, 128, -1)
    for symmetric, dtype in ((False, torch.float16), (True, torch.bfloat16))
]
SIZES = [(576, 192), (256, 8)]


def made(size, layout, seed=0):
    parts, dense = quantised(*size, layout, torch.Generator().manual_seed(seed))
    claim = read_scheme({"config.json": layout.config}).default
    return PackedTensors(module="m.q_proj", **parts), dense, claim


@pytest.mark.parametrize("layout", GPTQ + EIGHT_BITS + AWQ, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_layout_unpacks_to_its_dense_weight(size, layout):
    if layout.method == "awq" and layout.group > 0 and size[0] % layout.group:
        pytest.skip("AWQ has whole groups only")
    packed, dense, claim = made(size, layout)
    weight = unpack(packed, size, claim)
    torch.testing.assert_close(weight.dense(), dense, rtol=0, atol=0)


SYMMETRIC = [layout for layout in EIGHT_BITS if layout.symmetric]


@pytest.mark.parametrize("layout", GPTQ + SYMMETRIC + AWQ, ids=str)
def test_what_the_tensors_tell_needs_no_claim(layout):
    packed, dense, _ = made((256, 256), layout)
    torch.testing.assert_close(unpack(packed, (256, 256), Claim()).dense(), dense, rtol=0, atol=0)


@pytest.mark.parametrize("layout", [GPTQ[3], GPTQ[-2], AWQ[0]], ids=str)
def test_the_kernel_layout_stands_for_the_same_weight(layout):
    from engine.layers.linear import pack

    packed, dense, claim = made((576, 192), layout)
    weight = pack(unpack(packed, (576, 192), claim), torch.device("cpu"), torch.float32)
    torch.testing.assert_close(dequantize_w4(weight).t(), dense, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("zeros", [[7, 0, 7, 9, 15, 1, 0, 0], [0] * 8, [0, 15] * 4], ids=str)
def test_a_v1_zero_of_0_had_borrowed_from_its_neighbour(zeros):
    packed, _, claim = made((64, 8), Layout("gptq", 32))
    stored = pack_words(torch.tensor([[7] * 8, zeros])) - 0x11111111
    weight = unpack(replace(packed, qzeros=stored), (64, 8), claim)
    assert weight.zeros.tolist() == [[7] * 8, zeros]


def test_a_missing_g_idx_means_groups_in_order():
    packed, dense, claim = made((128, 64), Layout("gptq", 32))
    weight = unpack(replace(packed, g_idx=None), (128, 64), claim)
    assert torch.equal(weight.dense(), dense)


def refusal(packed, size, claim):
    with pytest.raises(CheckpointInvalid, match=r"m\.q_proj") as caught:
        unpack(packed, size, claim)
    return str(caught.value)


def test_v2_zeros_under_a_v1_claim_are_refused_not_garbled():
    packed, _, _ = made((256, 64), Layout("gptq", 32, zeros="v2"))
    v1 = Claim(method="gptq", group_size=32, zeros="v1", symmetric=False)
    assert "fit v2" in refusal(packed, (256, 64), v1)


@pytest.mark.parametrize(("stored", "claimed"), [("v1", "v2"), ("v2", "v1")])
def test_symmetric_zeros_of_the_other_version_are_refused(stored, claimed):
    packed, _, _ = made((64, 64), Layout("gptq", 32, symmetric=True, zeros=stored))
    claim = Claim(method="gptq", group_size=32, symmetric=True, zeros=claimed)
    assert "sym=true" in refusal(packed, (64, 64), claim)


def test_varying_zeros_under_a_symmetric_claim_are_refused():
    packed, _, claim = made((64, 64), Layout("gptq", 32))
    assert "sym=true" in refusal(packed, (64, 64), replace(claim, symmetric=True))


def test_awq_without_zero_points_must_store_8_everywhere():
    packed, _, claim = made((64, 64), Layout("awq", 32))
    assert "zero_point=false" in refusal(packed, (64, 64), replace(claim, symmetric=True))


def test_gemv_order_is_refused_even_for_a_square_weight():
    K = N = 64
    parts, _ = quantised(K, N, Layout("awq", 32), torch.Generator().manual_seed(0))
    transposed = PackedTensors(
        module="m.q_proj",
        qweight=torch.zeros((N, K // 8), dtype=torch.int32),
        qzeros=torch.zeros((N, 1), dtype=torch.int32),
        scales=torch.ones((N, 2), dtype=torch.float16),
    )
    assert "scales" in refusal(transposed, (K, N), Claim())
    assert parts["qweight"].shape == transposed.qweight.shape


def test_other_bits_than_claimed_are_refused():
    packed, _, claim = made((64, 32), Layout("gptq", 32))
    assert "found 4 bits" in refusal(packed, (64, 32), replace(claim, bits=8))
    wide = replace(packed, qweight=torch.zeros((16, 32), dtype=torch.int32))
    assert "found 8 bits" in refusal(wide, (64, 32), claim)


def test_three_bit_words_are_refused():
    packed, _, claim = made((64, 32), Layout("gptq", 32))
    narrow = replace(packed, qweight=torch.zeros((6, 32), dtype=torch.int32))
    message = refusal(narrow, (64, 32), claim)
    assert "[6, 32]" in message
    assert "[8, 32]" in message


def test_zeros_that_are_not_packed_are_refused():
    packed, _, claim = made((64, 32), Layout("gptq", 32))
    loose = replace(packed, qzeros=torch.full((2, 32), 7, dtype=torch.int32))
    assert "qzeros" in refusal(loose, (64, 32), claim)


def test_a_group_size_other_than_claimed_is_refused():
    packed, _, claim = made((128, 32), Layout("gptq", 32))
    assert "4 groups" in refusal(packed, (128, 32), replace(claim, group_size=64))


def test_uneven_groups_are_refused():
    packed, _, claim = made((64, 32), Layout("gptq", 32))
    skewed = torch.zeros(64, dtype=torch.int32)
    assert "uneven" in refusal(replace(packed, g_idx=skewed), (64, 32), claim)


def test_tensors_of_another_method_than_claimed_are_refused():
    packed, _, claim = made((64, 32), Layout("gptq", 32))
    assert "awq" in refusal(packed, (64, 32), replace(claim, method="awq"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 6e4])
def test_scales_that_no_weight_has_are_refused(value):
    packed, _, claim = made((64, 32), Layout("gptq", 32))
    scales = packed.scales.clone()
    scales[0, 5] = value
    refusal(replace(packed, scales=scales), (64, 32), claim)


def test_the_order_of_awq_is_what_the_format_says():
    words = pack_words(torch.arange(8).reshape(1, 8), AWQ_ORDER)
    assert [(int(words[0, 0]) >> 4 * i) & 15 for i in range(8)] == list(AWQ_ORDER)
    assert int(words[0, 0]) & 0xFFFFFFFF == 0x75316420


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"quant_method": "gptq", "bits": 2, "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits"),
        ({"quant_method": "awq", "w_bit": 8}, "bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv_fast"}, "version"),
        ({"quant_method": "awq", "bits": 4, "version": "marlin"}, "version"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, "group_size"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "checkpoint_format"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}, "dynamic"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:up": 8}}, "dynamic"),
        ({"quant_method": "gptq", "bits": 4, "sym": "false"}, "sym='false'; expected true or"),
        ({"quant_method": "gptq", "bits": 4, "desc_act": 1}, "desc_act=1; expected true or"),
        ({"quant_method": "awq", "bits": 4, "zero_point": "no"}, "zero_point='no'"),
        ({"quant_method": "auto-round", "sym": "yes"}, "sym='yes'"),
        ({"quant_method": "bitsandbytes"}, "quant_method"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format"),
        ({"quant_method": "modelopt"}, "quant_method"),
    ],
)
def test_a_claim_we_do_not_serve_is_refused_by_field(config, field):
    with pytest.raises(CheckpointInvalid, match=field):
        read_scheme({"config.json: quantization_config": config})
