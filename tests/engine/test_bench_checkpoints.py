"""Random checkpoints use the quantisers' own nibble orders."""

import json

import pytest
import torch
from safetensors import safe_open

from engine.bench.checkpoints import AWQ_ORDER, CheckpointWriter, pack_nibbles, write_adapter
from engine.bench.shapes import TINY


def test_packing_puts_element_order_i_in_nibble_i():
    codes = torch.arange(8, dtype=torch.int32).reshape(1, 8)
    word = int(pack_nibbles(codes, 1, AWQ_ORDER)[0, 0]) & 0xFFFFFFFF
    assert [(word >> (4 * i)) & 15 for i in range(8)] == list(AWQ_ORDER)


@pytest.mark.parametrize("fmt", ["awq", "gptq", "gptq-act-order", "fp16"])
def test_a_checkpoint_has_every_tensor_its_format_needs(fmt, tmp_path):
    CheckpointWriter(TINY, fmt).write(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    prefix = "model.layers.1.mlp.down_proj"
    want = {
        "awq": {"qweight": (512, 32), "qzeros": (4, 32), "scales": (4, 256)},
        "gptq": {"qweight": (64, 256), "qzeros": (4, 32), "scales": (4, 256), "g_idx": (512,)},
        "fp16": {"weight": (256, 512)},
    }
    for suffix, size in want[fmt.removesuffix("-act-order")].items():
        with safe_open(tmp_path / index[f"{prefix}.{suffix}"], "pt") as file:
            assert tuple(file.get_slice(f"{prefix}.{suffix}").get_shape()) == size


def test_act_order_shares_its_permutation_where_inputs_are_shared(tmp_path):
    CheckpointWriter(TINY, "gptq-act-order").write(tmp_path)
    with safe_open(tmp_path / "model-00001-of-00003.safetensors", "pt") as file:
        q, k, gate = (
            file.get_tensor(f"model.layers.0.{name}.g_idx")
            for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj")
        )
    assert torch.equal(q, k)
    assert not torch.equal(q, gate)
    assert q.bincount().tolist() == [128, 128]


def test_an_adapter_covers_every_linear(tmp_path):
    write_adapter(tmp_path, TINY, rank=8)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert len(file.keys()) == TINY.num_hidden_layers * 7 * 2
