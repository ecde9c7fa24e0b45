"""Packed factors equal what PEFT itself computes for the same files."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from adapters.base_spec import BaseSpec
from adapters.config import IGNORED, REFUSED_WHEN_SET
from adapters.errors import AdapterInvalid
from adapters.keys import PARENTS
from adapters.manifest import AdapterManifest
from adapters.pack import pack
from adapters.store import AdapterStore
from adapters.tensor_file import TensorFile
from adapters.validate import validate
from tests.adapters.builders import BASE, PREFIX, config, encode, lora, write_adapter

Q = f"{PREFIX}model.layers.0.self_attn.q_proj"


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    settings = LlamaConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(settings)


@pytest.fixture(scope="module")
def base_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base")
    tiny_llama().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def base(base_directory: Path) -> BaseSpec:
    return BaseSpec.from_checkpoint(base_directory)


def trained(path: Path, *, save_embedding_layers: bool | str = "auto", **settings: object) -> Path:
    """An adapter PEFT made and saved, with random values in A and B."""
    settings = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", **settings}
    model = get_peft_model(tiny_llama(), LoraConfig(**settings))
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight)
    model.save_pretrained(path, save_embedding_layers=save_embedding_layers)
    return path


def peft_deltas(path: Path) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """((layer, module), W' - W) as a fresh PEFT loads the directory."""
    model = PeftModel.from_pretrained(tiny_llama(), path)
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight") and "default" in getattr(module, "lora_A", {}):
            words = name.split(".")
            yield (int(words[-3]), words[-1]), module.get_delta_weight("default").detach()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="family_default"),
        pytest.param({"target_modules": "all-linear"}, id="all_linear"),
        pytest.param({"target_modules": ["down_proj"], "r": 7, "lora_alpha": 3}, id="odd_rank"),
        pytest.param({"target_modules": r".*\.(1|2)\..*(k|up)_proj"}, id="regex"),
        pytest.param({"target_modules": ["q_proj"], "use_rslora": True}, id="rslora"),
        pytest.param(
            {"target_modules": ["o_proj", "gate_proj"], "layers_to_transform": [0, 2]}, id="layers"
        ),
        pytest.param(
            {
                "target_modules": list(PARENTS),
                "rank_pattern": {r"layers\.1\..*_proj": 2, "^model.layers.0.mlp.up_proj": 9},
                "alpha_pattern": {"q_proj": 1, "self_attn.v_proj": 5, ".*": 11},
            },
            id="patterns",
        ),
        pytest.param(
            {"target_modules": ["q_proj", "k_proj"], "rank_pattern": {"q_proj": 16},
             "alpha_pattern": {"proj": 99}, "use_rslora": True}, id="patterns_and_rslora"
        ),
        pytest.param({"target_modules": ["v_proj"], "lora_alpha": -4}, id="negative_alpha"),
        pytest.param({"target_modules": ["v_proj"], "lora_alpha": 0}, id="zero_alpha"),
        pytest.param({"target_modules": ["q_proj"], "alora_invocation_tokens": []}, id="no_alora"),
        pytest.param({"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"}, id="init"),
        pytest.param({"target_modules": ["q_proj"], "init_lora_weights": "mica"}, id="mica"),
    ],
)  # fmt: skip
def test_equals_peft_module_by_module(tmp_path, base, settings):
    path = trained(tmp_path, **settings)
    packed = pack(path, base, torch.float32)
    expected = dict(peft_deltas(path))
    assert packed.factors.keys() == expected.keys()
    for key, delta in expected.items():
        factor = packed.factors[key]
        torch.testing.assert_close(factor.b @ factor.a, delta, rtol=1e-5, atol=1e-6)
    report = validate(path, base)
    assert report.digest == packed.digest
    assert (
        report.rank == packed.rank == max(factor.a.shape[0] for factor in packed.factors.values())
    )


def test_every_setting_of_peft_is_one_we_know():
    known = IGNORED | REFUSED_WHEN_SET.keys()
    assert {field.name for field in fields(LoraConfig)} <= known


def test_an_initialisation_that_changes_the_base_is_refused(tmp_path, base):
    path = trained(tmp_path, target_modules=["q_proj"], init_lora_weights="pissa")
    with pytest.raises(AdapterInvalid, match="changes the base's weights"):
        pack(path, base, torch.float32)


def test_a_norm_saved_whole_is_refused_by_name(tmp_path, base):
    path = trained(tmp_path, target_modules=["q_proj"], modules_to_save=["norm"])
    with pytest.raises(AdapterInvalid, match=r"modules_to_save: norm.*"):
        pack(path, base, torch.float32)


def test_embeddings_of_another_base_saved_beside_lora_are_refused(tmp_path, base):
    """PEFT would put them in the base's place without a word."""
    path = trained(tmp_path, target_modules=["q_proj", "embed_tokens"])
    validate(path, base)
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors["base_model.model.model.embed_tokens.base_layer.weight"][5] += 0.25
    save_file(tensors, file)
    with pytest.raises(AdapterInvalid, match=r"embed_tokens\.base_layer.* another base"):
        validate(path, base)


def rewritten(path: Path, name: str, *, add: float) -> None:
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[name][5] += add
    save_file(tensors, file)


EMBEDDINGS = "base_model.model.model.embed_tokens"
COPIES = {
    "whole": ({}, f"{EMBEDDINGS}.weight", r"embed_tokens\.weight: differs from the base"),
    "beside-saved": (
        {"modules_to_save": ["lm_head"]},
        f"{PREFIX}lm_head.modules_to_save.weight",
        "given twice under two spellings, with other values: .*lm_head",
    ),
    "original-of-saved": (
        {"modules_to_save": ["lm_head"]},
        f"{PREFIX}lm_head.original_module.weight",
        r"original_module\.weight: differs from the base",
    ),
    "beside-tokens": (
        {"trainable_token_indices": [3, 9]},
        f"{EMBEDDINGS}.token_adapter.base_layer.weight",
        r"base_layer\.weight: differs from the base",
    ),
}


@pytest.mark.parametrize(("settings", "copy", "said"), COPIES.values(), ids=COPIES)
def test_copies_of_the_base_beside_an_adapter_change_nothing_or_are_refused(
    tmp_path, base, settings, copy, said
):
    """PEFT saves them when it takes the vocabulary for resized, or is told to."""
    settings = {"target_modules": ["q_proj"], **settings}
    plain = AdapterManifest.read(trained(tmp_path / "plain", **settings))
    path = trained(tmp_path / "copies", save_embedding_layers=True, **settings)
    with_copies = AdapterManifest.read(path)
    assert len(load_file(path / "adapter_model.safetensors")) > len(
        load_file(plain.directory / "adapter_model.safetensors")
    )
    assert (with_copies.digest, with_copies.targets) == (plain.digest, plain.targets)
    assert validate(path, base).tensors > validate(plain, base).tensors
    rewritten(path, copy, add=0.25)
    with pytest.raises(AdapterInvalid, match=said):
        validate(path, base)


def test_a_copy_that_was_rounded_is_refused_with_the_way_out(tmp_path, base):
    path = trained(tmp_path, target_modules=["q_proj", "embed_tokens"])
    file = path / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    with pytest.raises(AdapterInvalid, match=r"rounded to bfloat16: save without them"):
        validate(path, base)
    without = {name: t for name, t in load_file(file).items() if "base_layer" not in name}
    save_file(without, file)
    validate(path, base)


def test_a_copy_that_cannot_be_compared_is_refused(tmp_path, base):
    path = trained(tmp_path, save_embedding_layers=True, target_modules=["q_proj"])
    with pytest.raises(AdapterInvalid, match=r"lm_head\.weight: .* none to compare it with"):
        validate(path, replace(base, head=""))


def test_resized_embeddings_are_refused_with_both_sizes(tmp_path, base):
    path = trained(tmp_path, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors["base_model.model.model.embed_tokens.weight"] = torch.zeros(66, 24)
    save_file(tensors, file)
    with pytest.raises(AdapterInvalid, match=r"weight is \[66, 24\], the base needs \[64, 24\]"):
        validate(path, base)


@pytest.mark.parametrize("stored", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_stored_type_becomes_the_compute_type(tmp_path, stored, dtype):
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (3, 24)) / 8, random.integers(-9, 9, (24, 3)) / 8
    tensors = {f"{Q}.lora_A.weight": encode(a, stored), f"{Q}.lora_B.weight": encode(b, stored)}
    path = write_adapter(tmp_path, config(r=3, lora_alpha=6), tensors)
    factor = pack(path, BASE, dtype).factors[0, "q_proj"]
    assert torch.equal(factor.a, torch.tensor(a).to(dtype))
    assert torch.equal(factor.b, torch.tensor(2 * b).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounds_as_torch_does(tmp_path, dtype):
    path = write_adapter(tmp_path, config(r=4, lora_alpha=7), lora(rank=4))
    with TensorFile.open(path / "adapter_model.safetensors") as file:
        stored = {
            info.name: torch.frombuffer(file.read(info), dtype=torch.float32).view(info.shape)
            for info in file.tensors.values()
        }
    factor = pack(path, BASE, dtype).factors[0, "q_proj"]
    assert torch.equal(factor.a, stored[f"{Q}.lora_A.weight"].to(dtype))
    assert torch.equal(factor.b, (stored[f"{Q}.lora_B.weight"] * 1.75).to(dtype))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("stored", ["BF16", "F32"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("part", ["A", "B"])
def test_values_that_are_not_finite_are_never_packed(tmp_path, value, stored, dtype, part):
    values = np.zeros((4, 24) if part == "A" else (24, 4))
    values[1, 2] = value
    path = write_adapter(
        tmp_path, None, lora() | {f"{Q}.lora_{part}.weight": encode(values, stored)}
    )
    if value == 3e38 and part == "A" and dtype != torch.float16:
        assert pack(path, BASE, dtype).factors[0, "q_proj"].a[1, 2] > 2e38
        return
    with pytest.raises(AdapterInvalid, match=r"not finite in .*q_proj"):
        pack(path, BASE, dtype)


def test_gate_and_up_stay_apart(tmp_path):
    path = write_adapter(tmp_path, None, lora(0, "gate_proj") | lora(0, "up_proj"))
    factors = pack(path, BASE, torch.float32).factors
    assert not torch.equal(factors[0, "gate_proj"].b, factors[0, "up_proj"].b)
    assert not torch.equal(factors[0, "gate_proj"].a, factors[0, "up_proj"].a)


def test_values_that_overflow_the_compute_type_are_refused(tmp_path):
    tensors = lora() | {f"{Q}.lora_B.weight": encode(np.full((24, 4), 4e4))}
    path = write_adapter(tmp_path, None, tensors)
    assert torch.isfinite(pack(path, BASE, torch.bfloat16).factors[0, "q_proj"].b).all()
    with pytest.raises(AdapterInvalid, match=r"not finite in torch\.float16"):
        pack(path, BASE, torch.float16)


def test_another_base_is_refused(tmp_path):
    with pytest.raises(AdapterInvalid, match="the base needs"):
        pack(write_adapter(tmp_path), replace(BASE, hidden_size=32), torch.float32)


def test_packing_from_the_store_equals_packing_the_original(tmp_path):
    store = AdapterStore(tmp_path / "store")
    path = write_adapter(tmp_path / "adapter", None, lora(0) | lora(2, "up_proj", dtype="BF16"))
    first = pack(path, BASE, torch.float32)
    second = pack(store.open(store.put(path)), BASE, torch.float32)
    assert first.digest == second.digest
    for key, factor in first.factors.items():
        assert torch.equal(factor.a, second.factors[key].a)
        assert torch.equal(factor.b, second.factors[key].b)
