"""A model that sees gives transformers' logits, wherever its prompt is cut, with any adapter."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from adapters.base_spec import BaseSpec
from adapters.pack import pack
from adapters.validate import validate
from engine.admission import Limits, Refusal
from engine.composition import build_runner
from engine.config import Device, Dtype, EngineConfig
from engine.errors import CheckpointInvalid
from engine.protocol import Image, Sampling, Submit
from engine.seeing import Seeing
from tests.engine.checkpoints import Layout, Shape
from tests.engine.harness import Harness
from tests.engine.peers import LINEARS, tokens
from tests.engine.rig import Rig, chunk
from tests.engine.seeing_checkpoints import (
    CLIP,
    PREPROCESSOR,
    SIDE,
    SIGLIP,
    TOKEN,
    image_at,
    pixels,
    seen,
    write_seeing,
)

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
AT = (5, 30)  # where the two images begin
BASES = {
    "clip": {"vision": CLIP},
    "clip-with-its-class-row": {"vision": CLIP, "vision_feature_select_strategy": "full"},
    "clip-two-layers-side-by-side": {"vision": CLIP, "vision_feature_layer": [-2, 1]},
    "siglip": {"vision": SIGLIP, "vision_feature_select_strategy": "full"},
    "siglip-last-layer": {
        "vision": SIGLIP,
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -1,
    },
    "awq": {"layout": Layout("awq", 32)},
    "gptq": {"layout": Layout("gptq", 32, act_order=True)},
    "newer-names": {"prefix": "model.language_model."},
    "qwen2": {
        "shape": Shape(
            qkv_bias=True, extra={"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
        )
    },
}


def prompt_with(count, size):
    """Two images of ``size`` placeholders among ``count`` tokens."""
    prompt = tokens(count, vocab=TOKEN)
    for at in AT:
        prompt[at : at + size] = [TOKEN] * size
    return prompt


def in_parts(rig, prompt, images, cut, adapter=-1):
    pages, parts = rig.pages(len(prompt)), []
    for at in range(0, len(prompt), cut):
        part = prompt[at : at + cut]
        found = seen(images, at, at + len(part))
        parts.append(rig.logits([chunk(part, pages, start=at, adapter=adapter, images=found)]))
    return torch.cat(parts)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_logits_are_those_of_transformers_wherever_the_prompt_is_cut(tmp_path, base):
    made = write_seeing(tmp_path / "m", **base)
    rig = Rig(made.path)
    size = rig.seeing.tokens
    prompt = prompt_with(60, size)
    images = [image_at(at, seed, size) for seed, at in enumerate(AT)]
    wanted = made.expected(prompt, [pixels(0), pixels(1)])
    blind = made.expected(prompt, [pixels(1), pixels(0)])
    assert (wanted - blind)[AT[0] + 1 :].abs().max() > 0.05, "the images change nothing"
    torch.testing.assert_close(in_parts(rig, prompt, images, 60), wanted, **CLOSE)
    torch.testing.assert_close(in_parts(rig, prompt, images, 11), wanted, **CLOSE)


def test_an_adapter_applies_to_the_language_model(tmp_path):
    made = write_seeing(tmp_path / "m", layout=Layout("awq", 32))
    base = r".*language_model.*\.(" + "|".join(LINEARS) + ")"
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=base)
    adapted = get_peft_model(made.model, settings)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path / "a")
    rig, images = Rig(made.path), [image_at(at, seed) for seed, at in enumerate(AT)]
    rig.load(2, pack(tmp_path / "a", BaseSpec.from_checkpoint(made.path), torch.float32))
    prompt = prompt_with(60, 16)
    assert isinstance(adapted, PeftModel)
    with torch.no_grad():
        wanted = made.expected(prompt, [pixels(0), pixels(1)])
        with adapted.disable_adapter():
            plain = made.expected(prompt, [pixels(0), pixels(1)])
    torch.testing.assert_close(in_parts(rig, prompt, images, 13, adapter=2), wanted, **CLOSE)
    torch.testing.assert_close(in_parts(rig, prompt, images, 13), plain, **CLOSE)
    assert (wanted - plain).abs().max() > 0.05


def test_an_adapter_of_the_tower_is_refused_and_says_so(tmp_path):
    made = write_seeing(tmp_path / "m")
    adapted = get_peft_model(made.model, LoraConfig(r=4, target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "a")
    with pytest.raises(Exception, match="language model alone"):
        validate(tmp_path / "a", BaseSpec.from_checkpoint(made.path))


def engine_of(made, **settings):
    settings = {"page_tokens": 16, "max_num_batched_tokens": 16, "max_num_seqs": 8} | settings
    config = EngineConfig(
        model=str(made.path),
        device=Device.CPU,
        dtype=Dtype.FLOAT32,
        pool_bytes=8 << 20,
        **settings,
    )
    return Harness(config, SimpleNamespace(built=build_runner(config)))


def ask(engine, name, prompt, seeds, starts=AT, **more):
    """How many tokens of its prompt were found computed."""
    images = [image_at(at, seed) for at, seed in zip(starts, seeds, strict=True)]
    greedy = Sampling(temperature=0.0)
    engine.submit(name, prompt, 3, images=images, sampling=greedy, logprobs=0, **more)
    engine.run()
    return engine.terminals(name)[0].usage.cached_tokens


def log_probabilities(engine, name):
    outputs = engine.outputs[0, name]
    return torch.tensor([fact.logprob for output in outputs for fact in output.logprobs])


def wanted(made, engine, name, prompt, seeds):
    """transformers' own, of the tokens drawn; its likeliest are these."""
    drawn = engine.tokens(name)
    logits = made.expected(prompt + drawn, [pixels(seed) for seed in seeds])[-4:-1]
    assert logits.argmax(-1).tolist() == drawn
    return logits.log_softmax(-1)[range(3), drawn]


def test_what_was_computed_is_found_by_who_shows_the_same_images(tmp_path):
    """Passes of 16 tokens cut both images; a page has 16."""
    made = write_seeing(tmp_path / "m")
    engine, prompt = engine_of(made), prompt_with(60, 16)
    asked = {
        "first": ((0, 1), "t", 0),
        "again": ((0, 1), "t", 48),
        "another second": ((0, 2), "t", 16),
        "another first": ((3, 1), "t", 0),
        "of another": ((0, 1), "u", 0),
    }
    found = {}
    for name, (seeds, tenant, cached) in asked.items():
        assert ask(engine, name, prompt, seeds, tenant=tenant) == cached
        found[name] = log_probabilities(engine, name)
        right = wanted(made, engine, name, prompt, seeds)
        torch.testing.assert_close(found[name], right, rtol=1e-3, atol=1e-3)
    for other in ("another second", "another first"):
        assert (found[other] - found["first"]).abs().max() > 0.01, "the images change nothing"
    assert not engine.core._runner._images._kept, "vectors are kept that nobody needs"


def test_an_image_next_to_another_is_not_taken_for_it(tmp_path):
    """Equal tokens on every page: only the digests and where they begin tell them apart."""
    made = write_seeing(tmp_path / "m")
    engine, prompt = engine_of(made), [TOKEN] * 48 + tokens(5, vocab=TOKEN)
    cached = []
    for name, seeds in {"a": (0, 1, 2), "b": (0, 2, 1), "c": (1, 0, 2)}.items():
        cached.append(ask(engine, name, prompt, seeds, starts=(0, 16, 32)))
        right = wanted(made, engine, name, prompt, seeds)
        torch.testing.assert_close(log_probabilities(engine, name), right, rtol=1e-3, atol=1e-3)
    assert cached == [0, 16, 0]


@pytest.mark.parametrize(
    ("images", "named"),
    [
        ([image_at(0, 0, tokens=15)], "has 15 tokens"),
        ([image_at(40, 0), image_at(50, 1)], "overlaps"),
        ([image_at(50, 0)], "leaves the prompt"),
        ([Image(0, 16, b"x", image_at(0, 0).pixels)], "digest has 1 bytes"),
        ([Image(0, 16, bytes(32), b"xyz")], "3 bytes of pixels"),
    ],
)
def test_images_that_do_not_fit_are_refused(images, named):
    limits = Limits(
        vocab_size=96, max_model_len=100, num_pages=9, page_tokens=16, adapters=False,
        image_tokens=16, image_side=SIDE,
    )  # fmt: skip
    asked = Submit("r", "t", [TOKEN] * 60, 4, images=images)
    with pytest.raises(Refusal, match=named):
        limits.admit(asked)
    with pytest.raises(Refusal, match="reads text only"):
        replace(limits, image_tokens=0).admit(asked)


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        (
            "config.json",
            {"vision_config": CLIP | {"model_type": "pixtral"}},
            "model_type='pix",
        ),
        ("config.json", {"image_token_index": None}, "image_token_index=None"),
        ("config.json", {"vision_feature_select_strategy": "cls"}, "vision_feature_select"),
        ("preprocessor_config.json", {"crop_size": {"height": 14, "width": 14}}, "crop_size"),
        ("preprocessor_config.json", {"size": {"longest_edge": 28}}, "size="),
        ("preprocessor_config.json", {"image_std": [0, 1, 1]}, "image_std"),
        ("preprocessor_config.json", {"image_processor_type": "FuyuImageProcessor"}, "Fuyu"),
        ("preprocessor_config.json", {"resample": 9}, "resample=9"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, file, changes, named):
    facts = {
        "config.json": {
            "architectures": ["LlavaForConditionalGeneration"],
            "vision_config": CLIP,
            "image_token_index": TOKEN,
        },
        "preprocessor_config.json": PREPROCESSOR,
    }
    facts[file] = facts[file] | changes
    for name, found in facts.items():
        (tmp_path / name).write_text(json.dumps(found))
    with pytest.raises(CheckpointInvalid, match=named):
        Seeing.of(tmp_path)
