"""Every family gives transformers' logits: whole, in chunks, decoded, packed, with an adapter."""

from dataclasses import replace

import pytest
import torch

from adapters.base_spec import BaseSpec
from adapters.pack import pack
from engine.bench.checkpoints import CheckpointWriter
from engine.bench.reference import Reference
from engine.bench.shapes import LLAMA_70B, MISTRAL_7B, QWEN3_8B, QWEN25_7B, TINY
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.models.spec import ModelSpec
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

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
WINDOW = 20
PROMPT = 70  # several windows and pages


def family(name, model_type, **extra):
    return {"architectures": [f"{name}ForCausalLM"], "model_type": model_type, **extra}


WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW}
QWEN2 = Shape(qkv_bias=True, extra=family("Qwen2", "qwen2"))
QWEN3 = Shape(qk_norm=True, head_dim=32, extra=family("Qwen3", "qwen3"))
MISTRAL = Shape(extra=family("Mistral", "mistral", sliding_window=WINDOW))
SHAPES = {
    "llama-2": Shape(kv_heads=4, extra={"rms_norm_eps": 1e-6}),
    "llama-3-tied": Shape(heads=8, kv_heads=2, head_dim=8, tied=True),
    "qwen2": QWEN2,
    "qwen2-tied": replace(QWEN2, heads=7, kv_heads=1, head_dim=8, hidden=56, tied=True),
    "qwen2-upper-layers-windowed": replace(
        QWEN2, layers=3, extra=QWEN2.extra | WINDOWED | {"max_window_layers": 1}
    ),
    "qwen2-unused-window": replace(QWEN2, extra=QWEN2.extra | {"sliding_window": WINDOW}),
    "qwen3": QWEN3,
    "qwen3-tied-biases": replace(QWEN3, tied=True, attention_bias=True, kv_heads=1),
    "qwen3-layer-types": replace(
        QWEN3,
        extra=QWEN3.extra | WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral": MISTRAL,
    "mistral-no-window": Shape(head_dim=8, extra=family("Mistral", "mistral", sliding_window=None)),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_family = pytest.mark.parametrize(
    "shape", [QWEN2, QWEN3, MISTRAL], ids=["qwen2", "qwen3", "mistral"]
)


def in_parts(rig, prompt, *, cut, decoded):
    """Logits [T, V] with the prompt prefilled in chunks of ``cut`` and its end token by token."""
    pages, parts, at = rig.pages(len(prompt)), [], 0
    while at < len(prompt):
        size = min(cut, len(prompt) - decoded - at) if at < len(prompt) - decoded else 1
        parts.append(rig.logits([chunk(prompt[at : at + size], pages, start=at)]))
        at += size
    return torch.cat(parts)


@each_shape
def test_prefilled_chunked_and_decoded_logits_are_those_of_transformers(tmp_path, shape):
    written = write_checkpoint(tmp_path / "m", shape)
    rig, prompt = Rig(written.path), tokens(PROMPT)
    wanted = expected(transformers_model(written), prompt)
    whole = rig.logits([chunk(prompt, rig.pages(PROMPT))])
    torch.testing.assert_close(whole, wanted, **CLOSE)
    parts = in_parts(rig, prompt, cut=23, decoded=6)
    torch.testing.assert_close(parts, wanted, **CLOSE)


@each_shape
def test_the_oracle_of_the_benchmarks_agrees_with_transformers(tmp_path, shape):
    written = write_checkpoint(tmp_path / "m", shape, Layout("gptq", -1))
    reference = Reference(Checkpoint(written.path), torch.device("cpu"))
    prompt = tokens(PROMPT)
    (logits,) = reference.logits([prompt], [None])
    torch.testing.assert_close(logits, expected(transformers_model(written), prompt), **CLOSE)


@pytest.mark.parametrize(
    "real", [LLAMA_70B, QWEN25_7B, QWEN3_8B, MISTRAL_7B], ids=lambda shape: shape.name
)
def test_random_checkpoints_of_real_models_load_and_agree_with_the_oracle(tmp_path, real):
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    heads = ("num_attention_heads", "num_key_value_heads", "head_dim")
    small = replace(real, **{key: getattr(TINY, key) for key in sizes + heads})
    CheckpointWriter(small, "gptq-act-order").write(tmp_path)
    rig, prompt = Rig(tmp_path, pages=16), tokens(60, vocab=1024)
    (wanted,) = Reference(Checkpoint(tmp_path), torch.device("cpu")).logits([prompt], [None])
    logits = rig.logits([chunk(prompt, rig.pages(60))])
    torch.testing.assert_close(logits, wanted, **CLOSE)


@each_family
@pytest.mark.parametrize("cut", [1, 16, 33])
def test_in_deterministic_mode_the_cut_into_chunks_cannot_be_seen(tmp_path, shape, cut):
    rig = Rig(write_checkpoint(tmp_path / "m", shape).path, deterministic=True)
    prompt = tokens(45)
    whole = rig.logits([chunk(prompt, rig.pages(45))])
    assert torch.equal(in_parts(rig, prompt, cut=cut, decoded=3), whole)


@each_family
@pytest.mark.parametrize(
    "layout",
    [Layout("awq", 32), Layout("gptq", 32, act_order=True), Layout("compressed-tensors", 32)],
    ids=str,
)
def test_packed_weights_give_the_logits_of_their_dense_ones(tmp_path, shape, layout):
    written = write_checkpoint(tmp_path / "m", shape, layout)
    rig, prompt = Rig(written.path), tokens(40)
    logits = rig.logits([chunk(prompt, rig.pages(40))])
    torch.testing.assert_close(logits, expected(transformers_model(written), prompt), **CLOSE)


@each_family
def test_an_adapter_and_the_base_in_one_batch_give_pefts_logits(tmp_path, shape):
    written = write_checkpoint(tmp_path / "m", shape, Layout("gptq", 32))
    settings = {"r": 6, "lora_alpha": 12, "target_modules": LINEARS}
    path = write_adapter(tmp_path / "a", written, settings)
    rig, prompt, other = Rig(written.path), tokens(40), tokens(31, seed=1)
    rig.load(3, pack(path, BaseSpec.from_checkpoint(written.path), torch.float32))
    logits = rig.logits([chunk(prompt, rig.pages(40), adapter=3), chunk(other, rig.pages(31))])
    adapted, base = peft_logits(written, path, prompt), transformers_model(written)
    torch.testing.assert_close(logits, torch.cat([adapted, expected(base, other)]), **CLOSE)
    assert (adapted - expected(base, prompt)).abs().max() > 0.05


def test_a_window_counts_the_token_itself(tmp_path):
    """With a window of 1 a token sees itself alone: equal tokens have equal logits."""
    shape = Shape(extra=family("Mistral", "mistral", sliding_window=1))
    rig = Rig(write_checkpoint(tmp_path / "m", shape).path)
    logits = rig.logits([chunk([7, 9, 7, 30, 7], rig.pages(5))])
    torch.testing.assert_close(logits[[0, 2]], logits[[4, 4]], **CLOSE)
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize(
    ("kinds", "window"), [("full_attention", 0), ("sliding_attention", WINDOW), (None, WINDOW)]
)
def test_a_mistral_that_lists_its_layers_is_taken_at_its_word(kinds, window):
    config = MISTRAL.config | {"layer_types": [kinds] * 2 if kinds else None}
    assert ModelSpec.read(config).windows == (window, window)


@pytest.mark.parametrize("kinds", ["full_attention", ["chunked_attention"] * 2])
def test_layers_of_a_kind_we_do_not_compute_are_refused(kinds):
    with pytest.raises(CheckpointInvalid, match="layer_types"):
        ModelSpec.read(MISTRAL.config | {"layer_types": kinds})
