"""Our Llama gives transformers' logits, and PEFT's with adapters, on the dequantised weights."""

import pytest
import torch

from adapters.base_spec import BaseSpec
from adapters.pack import pack
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.peers import (
    LINEARS,
    expected,
    peft_logits,
    tokens,
    transformers_model,
    write_adapter,
)
from tests.engine.rig import Rig, chunk

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
NEW_ROPE_KEYS = {
    "rope_theta": None,
    "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"},
}


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout("gptq", 32, act_order=True),
        Layout("gptq", 64, symmetric=True, zeros="v2"),
        Layout("gptq", -1, dtype=torch.bfloat16),
        Layout("awq", 32),
    ],
    ids=str,
)
def test_logits_are_those_of_transformers(tmp_path, layout):
    written = write_checkpoint(tmp_path / "m", layout=layout)
    rig, prompt = Rig(written.path), tokens(37)
    logits = rig.logits([chunk(prompt, rig.pages(40))])
    torch.testing.assert_close(logits, expected(transformers_model(written), prompt), **CLOSE)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(tied=True),
        Shape(attention_bias=True, heads=6, kv_heads=1, head_dim=8, hidden=48, inner=72),
        Shape(heads=9, kv_heads=3, hidden=144, inner=96, layers=1, extra=NEW_ROPE_KEYS),
        Shape(
            extra={
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            }
        ),
    ],
    ids=["tied", "biases", "odd-heads-new-rope-keys", "llama3-rope"],
)
def test_shapes_and_settings_mean_what_transformers_means(tmp_path, shape):
    written = write_checkpoint(tmp_path / "m", shape)
    rig, prompt = Rig(written.path), tokens(90)
    logits = rig.logits([chunk(prompt, rig.pages(96))])
    torch.testing.assert_close(logits, expected(transformers_model(written), prompt), **CLOSE)


ADAPTERS = {
    "all-linear": {"r": 8, "lora_alpha": 16, "target_modules": LINEARS},
    "q-and-v": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"]},
    "rslora-above-16": {"r": 20, "lora_alpha": 8, "use_rslora": True, "target_modules": LINEARS},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["k_proj", "up_proj", "down_proj", "o_proj"],
        "rank_pattern": {"layers.1.self_attn.o_proj": 33, "up_proj": 1},
        "alpha_pattern": {"down_proj": 2},
    },
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_gives_pefts_logits(tmp_path, name):
    written = write_checkpoint(tmp_path / "m", layout=Layout("gptq", 32))
    path = write_adapter(tmp_path / "a", written, ADAPTERS[name])
    rig, prompt = Rig(written.path), tokens(29)
    packed = pack(path, BaseSpec.from_checkpoint(written.path), torch.float32)
    rig.load(3, packed)
    logits = rig.logits([chunk(prompt, rig.pages(32), adapter=3)])
    wanted = peft_logits(written, path, prompt)
    torch.testing.assert_close(logits, wanted, **CLOSE)
    base = rig.logits([chunk(prompt, rig.pages(32))])
    assert (base - wanted).abs().max() > 0.05


def test_a_batch_of_all_adapters_and_the_base_gives_each_its_own_logits(tmp_path):
    written = write_checkpoint(tmp_path / "m", layout=Layout("awq", 64))
    rig, spec = Rig(written.path), BaseSpec.from_checkpoint(written.path)
    chunks, wanted = [], []
    for row, (name, settings) in enumerate(ADAPTERS.items()):
        path = write_adapter(tmp_path / name, written, settings, seed=row)
        rig.load(row, pack(path, spec, torch.float32))
        prompt = tokens(11 + 7 * row, seed=row)
        chunks.append(chunk(prompt, rig.pages(len(prompt)), adapter=row))
        wanted.append(peft_logits(written, path, prompt))
    prompt = tokens(13, seed=9)
    chunks.append(chunk(prompt, rig.pages(13)))
    wanted.append(expected(transformers_model(written), prompt))
    torch.testing.assert_close(rig.logits(chunks), torch.cat(wanted), **CLOSE)
