"""Known spellings of a tensor's name mean one thing; every other name says what it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.keys import Foreign, LoraKey, Part, Site, parse_key

Q = "model.layers.2.self_attn.q_proj"


@pytest.mark.parametrize(
    "name",
    [
        f"base_model.model.{Q}.lora_A.weight",
        f"base_model.model.{Q}.lora_A.default.weight",
        f"base_model.model.{Q}.base_layer.lora_A.weight",
        f"base_model.model.{Q}.base_layer.lora_A.default.weight",
        f"{Q}.lora_A.weight",
    ],
)
def test_known_spellings_mean_the_same(name):
    assert parse_key(name) == LoraKey(Site(2, "q_proj"), Part.A)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"base_model.model.{Q}.lora_magnitude_vector", Foreign.DORA),
        (f"base_model.model.{Q}.lora_magnitude_vector.default.weight", Foreign.DORA),
        (f"base_model.model.{Q}.lora_B.bias", Foreign.LORA_BIAS),
        (f"base_model.model.{Q}.bias", Foreign.BIAS),
        (f"base_model.model.{Q}.base_layer.bias", Foreign.BIAS),
        (f"base_model.model.{Q}.base_layer.weight", Foreign.SAVED),
        ("base_model.model.lm_head.weight", Foreign.SAVED),
        ("base_model.model.lm_head.lora_A.weight", Foreign.HEAD),
        ("base_model.model.lm_head.base_layer.weight", Foreign.SAVED),
        ("base_model.model.model.embed_tokens.lora_embedding_A", Foreign.EMBEDDING),
        (
            "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
            Foreign.TOKENS,
        ),
        (f"base_model.model.{Q}.lora_A.other.weight", Foreign.UNKNOWN),
        (f"base_model.model.language_model.{Q}.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.02.self_attn.q_proj.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.٣.self_attn.q_proj.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.2.mlp.q_proj.lora_A.weight", Foreign.UNKNOWN),
        ("base_model.model.model.layers.2.self_attn.qkv_proj.lora_A.weight", Foreign.UNKNOWN),
        ("", Foreign.UNKNOWN),
    ],
)
def test_foreign_names_say_what_they_are(name, kind):
    assert parse_key(name) == kind


WORDS = ["base_model", "model", "layers", "1", "mlp", "up_proj", "lora_B", "weight", "default"]


@given(st.lists(st.sampled_from([*WORDS, "base_layer", "", "\ud800", "x" * 300])))
def test_any_name_is_classified(words):
    assert isinstance(parse_key(".".join(words)), LoraKey | Foreign)
