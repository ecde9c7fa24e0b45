"""A checkpoint loads whole or is refused with the module, what was found and what was expected."""

import json

import pytest
import torch
from safetensors.torch import save_file

from adapters.base_spec import BaseSpec
from adapters.shards import INDEX
from engine.checkpoint import Checkpoint
from engine.errors import CheckpointInvalid
from engine.models.spec import ModelSpec
from tests.engine.checkpoints import Layout, Shape, quantised, save, write_checkpoint
from tests.engine.rig import Rig, chunk

TOKENS = [5, 9, 14, 3, 60]
DOWN = "model.layers.1.mlp.down_proj"
GATE = "model.layers.0.mlp.gate_proj"


def rewritten(path, written, tensors, config=None):
    save(
        path, tensors, {**json.loads((written.path / "config.json").read_text()), **(config or {})}
    )
    return path


def refusal(path):
    with pytest.raises(CheckpointInvalid) as caught:
        Rig(path)
    return str(caught.value)


@pytest.fixture(scope="module")
def gptq(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("gptq"), layout=Layout("gptq", 32))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("dense"))


def logits(path, **settings):
    rig = Rig(path, **settings)
    return rig.logits([chunk(TOKENS, rig.pages(16))])


@pytest.mark.parametrize("index_name", [INDEX, "gptq_model-4bit-32g.safetensors.index.json"])
def test_shards_are_one_checkpoint(tmp_path, gptq, index_name):
    names = sorted(gptq.stored)
    shards = {f"model-{i}.safetensors": names[i::3] for i in range(3)}
    for file, part in shards.items():
        save_file({name: gptq.stored[name].contiguous() for name in part}, tmp_path / file)
    index = {name: file for file, part in shards.items() for name in part}
    (tmp_path / index_name).write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text((gptq.path / "config.json").read_text())
    assert torch.equal(logits(tmp_path), logits(gptq.path))
    read = BaseSpec.from_checkpoint
    assert read(tmp_path).fingerprint == read(gptq.path).fingerprint


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_read_as_what_they_are(tmp_path, dense, dtype):
    halved = {name: tensor.to(dtype) for name, tensor in dense.stored.items()}
    widened = {name: tensor.float() for name, tensor in halved.items()}
    a = rewritten(tmp_path / "half", dense, halved)
    b = rewritten(tmp_path / "wide", dense, widened)
    assert torch.equal(logits(a), logits(b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_checkpoint_knows_the_type_of_its_weights(tmp_path, dense, dtype):
    stored = {name: tensor.to(dtype) for name, tensor in dense.stored.items()}
    found = Checkpoint(rewritten(tmp_path / "m", dense, stored)).dtype
    assert found == str(dtype).removeprefix("torch.")


def test_a_quantised_model_equals_its_dequantised_one(tmp_path, gptq):
    plain = rewritten(tmp_path / "d", gptq, gptq.dense, {"quantization_config": None})
    assert torch.equal(logits(gptq.path), logits(plain))


def test_bfloat16_stays_close_and_has_a_float32_head(gptq):
    rig = Rig(gptq.path, dtype=torch.bfloat16)
    assert rig.model.head.linear.dtype == torch.float32
    wide, narrow = logits(gptq.path), logits(gptq.path, dtype=torch.bfloat16)
    assert (wide - narrow).abs().max() < 0.2
    assert narrow.dtype == torch.float32


def test_modules_left_unquantised_are_followed_one_by_one(tmp_path, gptq):
    mixed = dict(gptq.stored)
    for module in (DOWN, "model.layers.0.self_attn.k_proj"):
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            del mixed[f"{module}.{part}"]
        mixed[f"{module}.weight"] = gptq.dense[f"{module}.weight"]
    assert torch.equal(logits(rewritten(tmp_path / "m", gptq, mixed)), logits(gptq.path))


def test_a_quantised_head_is_followed_too(tmp_path, gptq):
    parts, weight = quantised(64, 96, Layout("gptq", 32), torch.Generator().manual_seed(3))
    stored = {**gptq.stored, **{f"lm_head.{name}": part for name, part in parts.items()}}
    del stored["lm_head.weight"]
    plain = {**gptq.stored, "lm_head.weight": weight}
    a, b = rewritten(tmp_path / "q", gptq, stored), rewritten(tmp_path / "d", gptq, plain)
    assert torch.equal(logits(a), logits(b))


@pytest.mark.parametrize("layout", [Layout("gptq", 32), Layout("awq", 32), Layout("gptq", bits=8)])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows", [2, 40])
def test_a_quantised_head_computes_in_float32_as_a_plain_one_does(
    tmp_path, gptq, layout, deterministic, rows
):
    parts, weight = quantised(64, 96, layout, torch.Generator().manual_seed(3))
    stored = {**gptq.stored, **{f"lm_head.{name}": part for name, part in parts.items()}}
    claim = {"quantization_config": None}
    packed = rewritten(tmp_path / "q", gptq, without(stored, "lm_head.weight"), claim)
    plain = rewritten(tmp_path / "d", gptq, {**gptq.stored, "lm_head.weight": weight}, claim)
    found = []
    for path in (packed, plain):
        rig = Rig(path, dtype=torch.bfloat16, deterministic=deterministic)
        assert rig.model.head.linear.dtype == torch.float32
        found.append(rig.logits([chunk(TOKENS * (rows // 5) or TOKENS[:rows], rig.pages(48))]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_bias_of_zeros_where_the_model_has_none_is_not_a_bias(tmp_path, gptq):
    stored = {**gptq.stored, f"{DOWN}.bias": torch.zeros(64, dtype=torch.float16)}
    assert torch.equal(logits(rewritten(tmp_path / "m", gptq, stored)), logits(gptq.path))
    stored[f"{DOWN}.bias"][3] = 0.5
    assert DOWN in refusal(rewritten(tmp_path / "n", gptq, stored))


@pytest.mark.parametrize(
    "name",
    [
        "model.rotary_emb.inv_freq",
        *(f"model.layers.0.self_attn.rotary_emb.{table}" for table in ("inv_freq", "cos_cached")),
        *(f"model.layers.1.self_attn.{each}" for each in ("k_scale", "v_scale", "_extra_state")),
        *(f"{GATE}.{each}" for each in ("input_scale", "input_scale_ub", "input_zero_point")),
        f"{GATE}._extra_state",
    ],
)
def test_what_the_model_computes_or_a_trainer_kept_for_itself_is_ignored(tmp_path, dense, name):
    path = rewritten(tmp_path / "m", dense, {**dense.stored, name: torch.ones(8)})
    assert torch.equal(logits(path), logits(dense.path))


def test_a_tied_checkpoint_may_repeat_its_head_but_not_contradict_it(tmp_path):
    written = write_checkpoint(tmp_path / "m", Shape(tied=True))
    table = written.stored["model.embed_tokens.weight"]
    same = rewritten(
        tmp_path / "same", written, {**written.stored, "lm_head.weight": table.clone()}
    )
    assert torch.equal(logits(same), logits(written.path))
    other = {**written.stored, "lm_head.weight": table + 1}
    assert "tie_word_embeddings" in refusal(rewritten(tmp_path / "other", written, other))


def test_a_quantised_head_beside_a_tied_one_is_refused_with_the_way_out(tmp_path):
    written = write_checkpoint(tmp_path / "m", Shape(tied=True))
    parts, _ = quantised(64, 96, Layout("gptq", 32), torch.Generator().manual_seed(3))
    head = {f"lm_head.{name}": part for name, part in parts.items()}
    path = rewritten(tmp_path / "q", written, {**written.stored, **head})
    assert "lm_head: found qweight; expected none, as tie_word_embeddings" in refusal(path)
    untied = rewritten(
        tmp_path / "u", written, {**written.stored, **head}, {"tie_word_embeddings": False}
    )
    assert not torch.equal(logits(untied), logits(written.path))


def without(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{DOWN}.qweight", f"{DOWN}: found"),
        (f"{DOWN}.scales", "no scales"),
        (f"{DOWN}.qzeros", "no qzeros"),
        ("model.norm.weight", "model.norm: found no tensor"),
        ("lm_head.weight", "lm_head: found no tensor"),
        ("model.embed_tokens.weight", "model.embed_tokens: found no tensor"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path, gptq, name, said):
    assert said in refusal(rewritten(tmp_path / "m", gptq, without(gptq.stored, name)))


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        (f"{GATE}.weight_scale", torch.ones(1), f"{GATE}.weight_scale: found F32 [1]"),
        (f"{GATE}.weight", torch.ones(128, 64), "both weight and qweight"),
        ("model.layers.2.mlp.up_proj.qweight", torch.ones(8, 8), "model.layers.2.mlp.up_proj"),
        ("model.layers.0.block_sparse_moe.gate.weight", torch.ones(8, 64), "block_sparse_moe"),
        (f"{GATE}.qzeros", torch.ones(2, 128, dtype=torch.int32), "qzeros"),
        (f"{GATE}.qweight", torch.ones(16, 128, dtype=torch.int32), "found 8 bits to a weight"),
        (f"{GATE}.qweight", torch.ones(6, 128, dtype=torch.int32), "int32 [8, 128]"),
        (f"{GATE}.scales", torch.ones(2, 64, dtype=torch.float16), "scales"),
        (f"{GATE}.g_idx", torch.zeros(65, dtype=torch.int32), "g_idx [65]"),
        ("lm_head.weight", torch.ones(97, 64), "lm_head: found lm_head.weight F32 [97, 64]"),
        ("model.norm.weight", torch.ones(64, dtype=torch.int32), "I32 [64]"),
        ("model.norm.weight", torch.full((64,), float("nan")), "not finite"),
    ],
)
def test_a_tensor_that_is_not_as_expected_is_named(tmp_path, gptq, name, tensor, said):
    assert said in refusal(rewritten(tmp_path / "m", gptq, {**gptq.stored, name: tensor}))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rope_scaling": {"type": "longrope", "factor": 4.0}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps='small'; expected a number"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta=-1.0"),
        ({"eos_token_id": "2"}, "eos_token_id='2'"),
        ({"eos_token_id": [2, [3]]}, r"eos_token_id=\[3\]"),
    ],
)
def test_a_setting_that_would_change_the_result_is_refused_by_name(config, said):
    with pytest.raises(CheckpointInvalid, match=said):
        ModelSpec.read(Shape().config | config)


def test_eos_tokens_are_those_of_both_configs():
    spec = ModelSpec.read(Shape().config, {"eos_token_id": [7, 2]})
    assert spec.eos_tokens == (2, 7)


def test_an_end_token_beyond_the_vocabulary_is_none():
    config = Shape(vocab=96).config | {"eos_token_id": [96, -1, 95]}
    assert ModelSpec.read(config).eos_tokens == (95,)


def opened(path):
    with pytest.raises(CheckpointInvalid) as caught:
        Checkpoint(path)
    return str(caught.value)


def test_directories_that_are_no_checkpoint_say_why(tmp_path):
    assert "no such directory" in opened(tmp_path / "nowhere")
    assert "config.json is missing" in opened(tmp_path)
    (tmp_path / "config.json").write_text("{nonsense")
    assert "not readable JSON" in opened(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    assert "no safetensors file" in opened(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    assert "pytorch_model.bin is a pickle" in opened(tmp_path)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "model.Q4_1.gguf")
    assert "model.Q4_1.gguf is a GGUF file, which is not read" in opened(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00broken")
    assert "cannot be read" in opened(tmp_path)
    (tmp_path / "a.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in opened(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"")
    assert "2 safetensors files and no" in opened(tmp_path)


def test_a_config_in_any_unicode_is_read_and_one_without_end_refused(tmp_path, dense):
    text = (dense.path / "config.json").read_text()
    path = rewritten(tmp_path / "m", dense, dense.stored)
    for encoding in ("utf-8-sig", "utf-16"):
        (path / "config.json").write_text(text, encoding=encoding)
        assert Checkpoint(path).config == Checkpoint(dense.path).config
    (path / "config.json").write_text('{"a":' * 100_000)
    assert "not readable JSON" in opened(path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}])
def test_an_index_without_tensors_is_named(tmp_path, dense, index):
    path = rewritten(tmp_path / "m", dense, dense.stored)
    (path / INDEX).write_text(json.dumps(index))
    assert f"{INDEX}: weight_map names no tensors" in opened(path)


def test_an_index_must_match_its_shards_and_stay_inside(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    save_file({"x": torch.ones(1)}, tmp_path / "s.safetensors")
    for file, said in (("s.safetensors", "y is indexed"), ("../s.safetensors", "same directory")):
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"y": file}}))
        assert said in opened(tmp_path)
