"""RoPE scaling means what transformers means, beyond the original length too."""

import pytest
import torch

from engine.composition import build_runner
from engine.config import EngineConfig
from engine.errors import CheckpointInvalid, ConfigError
from engine.models.spec import ModelSpec
from tests.engine.checkpoints import Layout, Shape, write_checkpoint
from tests.engine.peers import expected, tokens, transformers_model
from tests.engine.rig import Rig, chunk

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
ORIGINAL = 32
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
KINDS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear-old-spelling": {"type": "linear", "factor": 3},
    "yarn": YARN,
    "yarn-old-spelling": {"type": "yarn"} | {k: v for k, v in YARN.items() if k != "rope_type"},
    "yarn-original-from-the-model": {"rope_type": "yarn", "factor": 4.0},
    "yarn-attention-factor": YARN | {"attention_factor": 0.9},
    "yarn-mscale": YARN | {"mscale": 0.8, "mscale_all_dim": 0.4},
    "yarn-betas": YARN | {"beta_fast": 12.0, "beta_slow": 2.0, "truncate": False},
    "yarn-narrow-ramp": YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    "llama3": LLAMA3,
}


def shape(settings, **more):
    return Shape(positions=more.pop("positions", ORIGINAL), extra={"rope_scaling": settings} | more)


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_logits_beyond_the_original_length_are_those_of_transformers(tmp_path, settings):
    positions = 256 if settings.get("rope_type") == "llama3" else ORIGINAL
    written = write_checkpoint(tmp_path / "m", shape(settings, positions=positions))
    rig, prompt = Rig(written.path), tokens(90)
    wanted = expected(transformers_model(written), prompt)
    pages = rig.pages(90)
    logits = [rig.logits([chunk(prompt[:61], pages)])]
    logits += [rig.logits([chunk(prompt[61:89], pages, start=61)])]
    logits += [rig.logits([chunk(prompt[89:], pages, start=89)])]
    torch.testing.assert_close(torch.cat(logits), wanted, **CLOSE)


@pytest.mark.parametrize(
    ("name", "kind", "facts"),
    [("Qwen2", "qwen2", {"qkv_bias": True}), ("Qwen3", "qwen3", {"qk_norm": True})],
)
def test_a_qwen_with_yarn_in_new_keys_reaches_its_long_context(tmp_path, name, kind, facts):
    keys = {"architectures": [f"{name}ForCausalLM"], "model_type": kind, "rope_theta": None}
    extra = keys | {"rope_parameters": YARN | {"rope_theta": 1e6}}
    written = write_checkpoint(tmp_path / "m", Shape(positions=ORIGINAL, extra=extra, **facts))
    rig, prompt = Rig(written.path), tokens(100)
    logits = rig.logits([chunk(prompt, rig.pages(100))])
    torch.testing.assert_close(logits, expected(transformers_model(written), prompt), **CLOSE)


@pytest.mark.parametrize(
    ("settings", "positions", "reach"),
    [
        ({"rope_type": "linear", "factor": 2.5}, 64, 160),
        (YARN, ORIGINAL, 128),
        (YARN, 128, 128),  # written as the long length
        (YARN | {"factor": None}, 256, 256),
        (LLAMA3, 256, 256),
        ({"rope_type": "dynamic", "factor": 4.0}, 64, 64),
        ({"rope_type": "default"}, 64, 64),
    ],
)
def test_a_model_reaches_as_far_as_its_scaling(settings, positions, reach):
    assert ModelSpec.read(shape(settings, positions=positions).config).max_position == reach


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


def test_dynamic_scaling_is_exact_up_to_the_trained_length(tmp_path):
    written = write_checkpoint(tmp_path / "m", shape(DYNAMIC, positions=96))
    rig, prompt = Rig(written.path), tokens(96)
    logits = rig.logits([chunk(prompt, rig.pages(96))])
    torch.testing.assert_close(logits, expected(transformers_model(written), prompt), **CLOSE)


def test_dynamic_scaling_beyond_the_trained_length_is_refused_saying_why(tmp_path):
    written = write_checkpoint(tmp_path / "m", shape(DYNAMIC, positions=96), Layout("gptq", 32))
    settings = EngineConfig(model=str(written.path), device="cpu", max_model_len=97)
    with pytest.raises(ConfigError, match=r"max_position_embeddings=96; .*dynamic .*pages"):
        build_runner(settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0]}, "short_factor"),
        ({"type": "su", "factor": 2.0}, "'su'"),
        ({"type": "mrope", "mrope_section": [8, 4, 4]}, "mrope_section"),
        ({"type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "alpha"),
        ({"rope_type": "linear"}, "'linear' without 'factor'"),
        ({"rope_type": "linear", "factor": 0.5}, "at least 1"),
        ({"rope_type": "yarn", "factor": "four"}, "'yarn'"),
        (YARN | {"original_max_position_embeddings": 0}, "original_max_position_embeddings=0"),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta=0; expected a number above 0"),
        ({"rope_type": "default", "rope_theta": float("nan")}, "rope_theta=nan"),
        (YARN | {"truncate": "false"}, "truncate='false'; expected true or false"),
        (YARN | {"attention_factor": float("nan")}, "attention_factor=nan"),
        (YARN | {"beta_fast": -1}, "beta_fast=-1"),
        (["linear", 2.0], "rope_scaling=.*expected an object"),
        ("linear", "rope_scaling='linear'; expected an object"),
    ],
)
def test_a_setting_we_would_not_compute_is_refused_by_name(settings, said):
    with pytest.raises(CheckpointInvalid, match=said):
        ModelSpec.read(shape(settings).config)


@pytest.mark.parametrize(
    ("older", "said"),
    [
        ({"type": "linear", "factor": 2.0}, "differ in rope_type: 'yarn' and 'linear'"),
        (YARN | {"factor": 2.0}, "differ in factor: 4.0 and 2.0"),
    ],
)
def test_old_and_new_settings_that_contradict_each_other_are_refused(older, said):
    settings = shape(older).config | {"rope_parameters": YARN}
    with pytest.raises(CheckpointInvalid, match=said):
        ModelSpec.read(settings)


def test_old_and_new_settings_that_say_the_same_are_read_once():
    older = {"type": "yarn"} | {k: v for k, v in YARN.items() if k != "rope_type"}
    both = shape(older).config | {"rope_parameters": YARN | {"rope_theta": 5e5}}
    assert (
        ModelSpec.read(both).rope == ModelSpec.read(shape(YARN | {"rope_theta": 5e5}).config).rope
    )


def test_a_setting_that_readers_read_differently_is_refused_with_the_way_out():
    settings = {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.878}
    with pytest.raises(
        CheckpointInvalid, match=r"'attn_factor' is not supported: .* as attention_f"
    ):
        ModelSpec.read(Shape().config | {"rope_scaling": settings})
