"""Known spellings of a tensor's name mean one thing; every other name says what it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.keys import OUTSIDE, Foreign, LoraKey, Part, Site, parse_key

Q = "model.layers.2.self_attn.q_proj"


@pytest.mark.parametrize(
    "name",
    [
        f"base_model.model.{Q}.lora_A.weight",
        f"base_model.model.{Q}.lora_A.default.weight",
        f"base_model.model.{Q}.base_layer.lora_A.weight",
        f"base_model.model.{Q}.base_layer.lora_A.default.weight",
        f"{Q}.lora_A.weight",
        f"base_model.model.language_model.{Q}.lora_A.weight",
        f"base_model.model.{Q}.lora_A.weight".replace("model.layers", "language_model.layers"),
        f"base_model.model._orig_mod.{Q}.lora_A.weight",
        f"base_model.model.{Q}.lora_A.weight".replace(".2.", ".2._checkpoint_wrapped_module."),
        f"_fsdp_wrapped_module.{Q}._orig_mod.lora_A.default.weight",
    ],
)
def test_known_spellings_mean_the_same(name):
    assert parse_key(name) == LoraKey(Site(2, "q_proj"), Part.A)


@pytest.mark.parametrize(
    ("name", "site", "part"),
    [
        (f"{Q}.lora_magnitude_vector", Site(2, "q_proj"), Part.MAGNITUDE),
        (f"{Q}.lora_magnitude_vector.default.weight", Site(2, "q_proj"), Part.MAGNITUDE),
        (f"{Q}.lora_B.bias", Site(2, "q_proj"), Part.LORA_BIAS),
        (f"{Q}.lora_B.default.bias", Site(2, "q_proj"), Part.LORA_BIAS),
        (f"{Q}.bias", Site(2, "q_proj"), Part.BIAS),
        (f"{Q}.base_layer.bias", Site(2, "q_proj"), Part.BIAS),
        ("lm_head.weight", Site(OUTSIDE, "lm_head"), Part.WEIGHT),
        ("lm_head.modules_to_save.default.weight", Site(OUTSIDE, "lm_head"), Part.WEIGHT),
        ("lm_head.lora_A.weight", Site(OUTSIDE, "lm_head"), Part.A),
        ("lm_head.base_layer.weight", Site(OUTSIDE, "lm_head"), Part.BASE_WEIGHT),
        ("model.embed_tokens.lora_embedding_A", Site(OUTSIDE, "embed_tokens"), Part.A),
        ("model.embed_tokens.lora_embedding_B.default", Site(OUTSIDE, "embed_tokens"), Part.B),
        (
            "model.embed_tokens.token_adapter.trainable_tokens_delta",
            Site(OUTSIDE, "embed_tokens"),
            Part.TOKENS,
        ),
    ],
)
@pytest.mark.parametrize("wrapper", ["", "base_model.model.", "base_model.model._orig_mod."])
def test_every_part_of_every_module_is_known(wrapper, name, site, part):
    assert parse_key(wrapper + name) == LoraKey(site, part)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"base_model.model.{Q}.base_layer.weight", Foreign.SAVED),
        ("base_model.model.model.norm.weight", Foreign.SAVED),
        ("base_model.model.model.embed_tokens.lora_A.weight", Foreign.UNKNOWN),
        (f"base_model.model.{Q}.ia3_l", Foreign.NOT_LORA),
        (f"base_model.model.{Q}.lora_A.other.weight", Foreign.UNKNOWN),
        (f"base_model.model.vision_tower.{Q}.lora_A.weight", Foreign.TOWER),
        ("base_model.model.model.layers.02.self_attn.q_proj.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.٣.self_attn.q_proj.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.2.mlp.q_proj.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.2.self_attn.qkv_proj.lora_A.weight", Foreign.UNKNOWN),
        ("model." * 40 + "layers.2.mlp.up_proj.lora_A.weight", Foreign.UNKNOWN),
        ("", Foreign.UNKNOWN),
    ],
)
def test_foreign_names_say_what_they_are(name, kind):
    assert parse_key(name) == kind


WORDS = ["base_model", "model", "layers", "1", "mlp", "up_proj", "lora_B", "weight", "default"]


@given(st.lists(st.sampled_from([*WORDS, "base_layer", "", "\ud800", "x" * 300])))
def test_any_name_is_classified(words):
    assert isinstance(parse_key(".".join(words)), LoraKey | Foreign)
