"""Adapters as trainers may save them, settings drawn at random: our logits are PEFT's, or PEFT has
none, or the refusal is one that we mean."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid
from adapters.pack import pack
from adapters.validate import validate
from engine.activation import active_from
from tests.engine.checkpoints import Layout, Shape, Written, write_checkpoint
from tests.engine.peers import LINEARS, expected, tokens, transformers_model
from tests.engine.rig import Rig, chunk

pytestmark = pytest.mark.slow

QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
FAMILIES = {
    "plain": (Shape(), Layout("gptq", 32, act_order=True)),
    "tied": (Shape(tied=True), Layout("awq", 32)),
    "biased": (Shape(attention_bias=True), Layout("compressed-tensors", 32)),
    "qwen2": (Shape(qkv_bias=True, tied=True, extra=QWEN2), Layout("gptq", 64, symmetric=True)),
}
PATTERNS = [
    "q_proj", "proj", "_proj", "layers.1", r"layers\.1\.self_attn\..*", r"^model\.layers\.0\..*",
    "self_attn.(q|k)_proj", "model.layers.1.mlp.up_proj", r".*\.0\..*_proj", r"mlp\.\w+_proj",
    "down_proj", r"layers\.[01]\.mlp\.(gate|down)_proj", "o_proj$", "embed_tokens", "lm_head",
    r"\S+up_proj", "layers.0.self_attn.v_proj",
]  # fmt: skip
# What PEFT has and we say that we have not.
MEANT = (
    "DoRA is not supported on",
    "a bias, which is not supported on",
    "an activated LoRA (aLoRA) changes linear layers only",
    "changes the base's weights when the adapter is loaded",
    "NaN or infinite values",  # of A after a decomposition of a small weight
)
EACH = 12  # of each family


def settings(draw: random.Random) -> dict[str, Any]:
    def at(share: float) -> bool:
        return draw.random() < share

    outer = [name for name in ("embed_tokens", "lm_head") if at(0.2)]
    pool = [*LINEARS, *outer]
    found: dict[str, Any] = {
        "r": draw.choice([1, 2, 4, 5, 8, 13]),
        "lora_alpha": draw.choice([1, 8, 16, -3, 2.5, 0.7]),
        "use_rslora": at(0.3),
        "use_dora": at(0.2),
        "target_modules": draw.choice(
            [
                *[draw.sample(pool, draw.randint(1, len(pool))) for _ in range(7)],
                *["all-linear", r".*layers\.\d\..*(q|down|up)_proj", None],
            ]
        ),
        "bias": draw.choice(["none", "none", "none", "all", "lora_only"]),
        "fan_in_fan_out": at(0.1),
        "ensure_weight_tying": at(0.15),
        "init_lora_weights": True if at(0.8) else draw.choice([False, "gaussian", "pissa"]),
    }
    if at(0.2) and not found["use_dora"]:
        found["lora_bias"] = True
    for field, values in (("rank_pattern", [1, 3, 6, 9]), ("alpha_pattern", [1, 3, -6, 9.5])):
        if at(0.5):
            keys = draw.sample(PATTERNS, draw.randint(1, 3))
            found[field] = {key: draw.choice(values) for key in keys}
    if at(0.2) and isinstance(found["target_modules"], list):
        found["layers_to_transform"] = draw.choice([0, 1, [0], [1], [0, 1]])
    if at(0.15):
        found["exclude_modules"] = draw.choice([["o_proj"], ["q_proj"], r".*layers\.0.*"])
    if at(0.2):
        found["modules_to_save"] = draw.choice([["lm_head"], ["embed_tokens", "lm_head"]])
    elif at(0.2):
        found["trainable_token_indices"] = draw.choice(
            [[5, 4, 9], {"embed_tokens": [7]}, {"embed_tokens": [7, 3], "lm_head": [7, 3]}]
        )
    if at(0.1):
        found["alora_invocation_tokens"] = [11, 12]
    return found


def trained(path: Path, written: Written, draw: random.Random) -> None:
    """Saved as some trainers do: with copies of the base's embeddings, in 16 bits."""
    model = get_peft_model(
        transformers_model(written), LoraConfig(task_type="CAUSAL_LM", **settings(draw))
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                torch.nn.init.normal_(parameter, std=0.3)
            elif "magnitude" in name:
                parameter.mul_(1 + 0.4 * torch.rand_like(parameter))
            elif parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(path, save_embedding_layers=draw.choice(["auto", True, False]))
    if draw.random() < 0.5:
        file = path / "adapter_model.safetensors"
        stored = load_file(file).items()
        save_file({name: t.half() if "lora" in name else t for name, t in stored}, file)


def outcome(directory: Path, written: Written, rig: Rig, seed: int) -> str:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    try:
        trained(directory, written, draw)
        model = PeftModel.from_pretrained(transformers_model(written), directory).eval()
    except (ValueError, TypeError, RuntimeError):  # settings that PEFT refuses, or cannot reload
        return "none"
    base, prompt = BaseSpec.from_checkpoint(written.path), tokens(24, seed)
    prompt[9:11] = [11, 12]
    try:
        invocation = validate(directory, base).invocation
    except AdapterInvalid as error:
        strange = [text for text in error.problems if not any(each in text for each in MEANT)]
        assert not strange, f"seed {seed}: {strange}"
        return "refused"
    pages = rig.load(3, pack(directory, base, torch.float32))
    active = {"active_from": active_from(prompt, invocation)} if invocation else {}
    asked = chunk(prompt, rig.pages(24), adapter=3, **active)
    wanted = expected(model, prompt)
    far = (rig.logits([asked]) - wanted).abs().max() / wanted.abs().max().clamp_min(1)
    assert far < 2e-4, f"seed {seed}: off by {far}"
    rig.adapters.clear(3)
    rig._free += [*pages, *asked.pages]
    return "equal"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_our_logits_are_pefts_or_the_refusal_is_meant(tmp_path, family):
    written = write_checkpoint(tmp_path / "m", *FAMILIES[family])
    rig = Rig(written.path)
    first = 1000 * list(FAMILIES).index(family)
    seen = Counter(
        outcome(tmp_path / str(seed), written, rig, seed) for seed in range(first, first + EACH)
    )
    assert seen["equal"] >= EACH // 2, seen
