"""Everything LoraConfig can say: our logits are PEFT's own, in a batch with the base beside it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from adapters.base_spec import BaseSpec
from adapters.pack import pack
from adapters.validate import validate
from engine.activation import active_from
from tests.engine.checkpoints import Layout, Shape, Written, write_checkpoint
from tests.engine.peers import LINEARS, expected, peft_logits, tokens, transformers_model
from tests.engine.rig import Rig, chunk, draw

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 2e-4, "atol": 2e-4}
BIASED = Shape(attention_bias=True)
TIED = Shape(tied=True)
QV = {"target_modules": ["q_proj", "v_proj"]}
FUSED = {"target_modules": ["k_proj", "up_proj"]}  # parts of fused layers


def trained(path: Path, written: Written, **settings: Any) -> Path:
    """What PEFT saves after training: every trainable tensor has moved."""
    torch.manual_seed(1)
    settings = {"r": 4, "lora_alpha": 6, **settings}
    model = get_peft_model(
        transformers_model(written), LoraConfig(task_type="CAUSAL_LM", **settings)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                torch.nn.init.normal_(parameter, std=0.3)
            elif "magnitude" in name:
                parameter.mul_(1 + 0.4 * torch.rand_like(parameter))
            elif parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return path


SETTINGS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "default-targets": (Shape(), {"r": 1}),
    "odd-rank": (Shape(), {"r": 19, "target_modules": LINEARS}),
    "rank-above-the-width": (Shape(), {"r": 40, "target_modules": ["k_proj", "v_proj"]}),
    "all-linear": (Shape(), {"target_modules": "all-linear"}),
    "regex": (Shape(), {"target_modules": r".*layers\.1\..*(q|down)_proj"}),
    "excluded": (Shape(), {"target_modules": LINEARS, "exclude_modules": ["o_proj", "up_proj"]}),
    "rslora": (Shape(), {"use_rslora": True, **QV}),
    "patterns": (
        Shape(),
        {
            "target_modules": LINEARS,
            "rank_pattern": {"down_proj": 7, r"layers\.1\.self_attn\..*": 2},
            "alpha_pattern": {"up_proj": 1, "layers.0.self_attn.q_proj": 30},
        },
    ),
    "parts-of-fused-layers": (Shape(), FUSED),
    "one-layer": (Shape(), {"layers_to_transform": 1, "layers_pattern": "layers", **QV}),
    "negative-alpha": (Shape(), {"lora_alpha": -5, **QV}),
    "lora-bias": (Shape(), {"lora_bias": True, "target_modules": LINEARS}),
    "lora-bias-beside-biases": (BIASED, {"lora_bias": True, "use_rslora": True, **FUSED}),
    "bias-all": (BIASED, {"bias": "all", **QV}),
    "bias-lora-only": (BIASED, {"bias": "lora_only", **QV}),
    "dora": (Shape(), {"use_dora": True, "target_modules": LINEARS}),
    "dora-beside-biases": (BIASED, {"use_dora": True, "r": 17, **FUSED}),
    "dora-trained-biases": (BIASED, {"use_dora": True, "bias": "all", **QV}),
    "embeddings": (Shape(), {"target_modules": ["embed_tokens", "q_proj"]}),
    "head": (Shape(), {"target_modules": ["lm_head", "q_proj"], "r": 5}),
    "embeddings-and-head": (Shape(), {"target_modules": ["embed_tokens", "lm_head", "up_proj"]}),
    "tied-embeddings": (TIED, {"target_modules": ["embed_tokens", "q_proj"]}),
    "tied-head": (TIED, {"target_modules": ["lm_head", "q_proj"]}),
    "saved": (Shape(), {"modules_to_save": ["embed_tokens", "lm_head"], **QV}),
    "saved-tied-embeddings": (TIED, {"modules_to_save": ["embed_tokens"], **QV}),
    "saved-tied-head": (TIED, {"modules_to_save": ["lm_head"], **QV}),
    "tokens": (Shape(), {"trainable_token_indices": [40, 3, 95], **QV}),
    "tokens-tied": (TIED, {"trainable_token_indices": [5, 4, 9], **QV}),
    "tokens-tied-by-name": (TIED, {"trainable_token_indices": {"embed_tokens": [5, 4]}, **QV}),
    "tokens-tied-by-both-names": (
        TIED,
        {"trainable_token_indices": {"embed_tokens": [5, 4], "lm_head": [5, 4]}, **QV},
    ),
    "tokens-tied-beside-a-head": (
        TIED,
        {"trainable_token_indices": [5, 4], "target_modules": ["lm_head", "q_proj"]},
    ),
    "saved-as-one": (TIED, {"modules_to_save": ["lm_head"], "ensure_weight_tying": True, **QV}),
    "adapted-as-one": (
        TIED,
        {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    ),
    "tokens-of-both": (
        Shape(),
        {"trainable_token_indices": {"embed_tokens": [7, 4], "lm_head": [8]}, **QV},
    ),
}


@pytest.mark.parametrize(("shape", "settings"), SETTINGS.values(), ids=SETTINGS)
def test_an_adapter_beside_the_base_gives_pefts_logits(tmp_path, shape, settings):
    written = write_checkpoint(tmp_path / "m", shape, Layout("gptq", 32))
    path, base = (
        trained(tmp_path / "a", written, **settings),
        BaseSpec.from_checkpoint(tmp_path / "m"),
    )
    validate(path, base)
    rig, prompt, other = Rig(written.path), tokens(40), tokens(31, seed=1)
    rig.load(3, pack(path, base, torch.float32))
    logits = rig.logits([chunk(prompt, rig.pages(40), adapter=3), chunk(other, rig.pages(31))])
    adapted, plain = peft_logits(written, path, prompt), transformers_model(written)
    torch.testing.assert_close(logits, torch.cat([adapted, expected(plain, other)]), **CLOSE)
    assert (adapted - expected(plain, prompt)).abs().max() > 0.05


ACTIVATED = {"alora_invocation_tokens": [11, 12], "target_modules": LINEARS, "lora_bias": True}


@pytest.mark.parametrize("places", [(), (0,), (5, 17), (38,)], ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_activated_adapter_gives_pefts_logits(tmp_path, places, deterministic):
    written = write_checkpoint(tmp_path / "m", BIASED, Layout("gptq", 32))
    path = trained(tmp_path / "a", written, **ACTIVATED)
    base, prompt = BaseSpec.from_checkpoint(written.path), tokens(40)
    for place in places:
        prompt[place : place + 2] = [11, 12]
    invocation = validate(path, base).invocation
    assert invocation == (11, 12)
    rig = Rig(written.path, deterministic=deterministic)
    rig.load(3, pack(path, base, torch.float32))
    mine = chunk(prompt, rig.pages(40), adapter=3, active_from=active_from(prompt, invocation))
    other = tokens(31, seed=1)
    logits = rig.logits([mine, chunk(other, rig.pages(31))])
    plain = transformers_model(written)
    wanted = torch.cat([peft_logits(written, path, prompt), expected(plain, other)])
    torch.testing.assert_close(logits, wanted, **CLOSE)
    begun, difference = places[-1] if places else 40, wanted[:40] - expected(plain, prompt)
    assert difference[:begun].abs().max().item() == 0 if begun else True
    assert difference[begun:].abs().max() > 0.05 if places else True


@pytest.mark.parametrize("place", [3, None])
def test_an_activated_adapter_generates_as_peft_does(tmp_path, place):
    written = write_checkpoint(tmp_path / "m", BIASED)
    path, prompt = trained(tmp_path / "a", written, **ACTIVATED), tokens(20)
    if place is not None:
        prompt[place : place + 2] = [11, 12]
    model = PeftModel.from_pretrained(transformers_model(written), path).eval()
    asked = torch.tensor([prompt])
    with torch.no_grad():
        wanted = model.generate(
            input_ids=asked, attention_mask=torch.ones_like(asked), max_new_tokens=12,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )[0].tolist()  # fmt: skip
    rig, base, known = Rig(written.path), BaseSpec.from_checkpoint(written.path), list(prompt)
    rig.load(0, pack(path, base, torch.float32))
    pages, start = rig.pages(40), active_from(prompt, (11, 12))
    while len(known) < len(wanted):
        at = 0 if len(known) == 20 else len(known) - 1
        step = chunk(known[at:], pages, start=at, adapter=0, active_from=start, draw=draw())
        known.append(rig.launch([step])[0].token)
    assert known == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensors_of_16_bits_are_what_they_say(tmp_path, dtype):
    written = write_checkpoint(tmp_path / "m", BIASED)
    path = trained(tmp_path / "a", written, use_dora=True, bias="all", **QV)
    file = path / "adapter_model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)
    rig, prompt = Rig(written.path), tokens(40)
    rig.load(0, pack(path, BaseSpec.from_checkpoint(written.path), torch.float32))
    logits = rig.logits([chunk(prompt, rig.pages(40), adapter=0)])
    torch.testing.assert_close(logits, peft_logits(written, path, prompt), rtol=1e-3, atol=1e-3)


def test_rows_given_up_and_taken_again_carry_nothing_over(tmp_path):
    """A row that had gains, biases and tables serves plain LoRA next."""
    written = write_checkpoint(tmp_path / "m", TIED)
    base, rig, prompt = BaseSpec.from_checkpoint(written.path), Rig(written.path), tokens(20)
    rich = trained(tmp_path / "a", written, use_dora=True, trainable_token_indices=[3, 4], **QV)
    plain = trained(tmp_path / "b", written, target_modules=["k_proj"])
    rig.load(0, pack(rich, base, torch.float32))
    rig.adapters.clear(0)
    rig.load(0, pack(plain, base, torch.float32))
    rig.load(9, pack(rich, base, torch.float32))  # the table grows around both
    for row, path in ((0, plain), (9, rich)):
        logits = rig.logits([chunk(prompt, rig.pages(20), adapter=row)])
        torch.testing.assert_close(logits, peft_logits(written, path, prompt), **CLOSE)


def test_in_deterministic_mode_neighbours_do_not_change_a_rich_adapters_tokens(tmp_path):
    written = write_checkpoint(tmp_path / "m", Shape())
    settings = {"use_dora": True, "modules_to_save": ["lm_head"], **FUSED}
    path, rig = trained(tmp_path / "a", written, **settings), Rig(written.path, deterministic=True)
    rig.load(1, pack(path, BaseSpec.from_checkpoint(written.path), torch.float32))
    prompt = tokens(21)
    alone = rig.logits([chunk(prompt, rig.pages(21), adapter=1)])
    pages = rig.pages(21)
    parts = [
        rig.logits([chunk(prompt[:9], pages, adapter=1), chunk(tokens(6, 5), rig.pages(6))])[:9],
        rig.logits([chunk(prompt[9:], pages, start=9, adapter=1)]),
    ]
    assert torch.equal(torch.cat(parts), alone)
