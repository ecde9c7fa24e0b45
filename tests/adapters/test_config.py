"""A config is believed only where PEFT's reading of it is what its author meant."""

import json

import pytest

from adapters.config import read_config
from tests.adapters.builders import config


def problems(**changes: object) -> str:
    return "; ".join(read_config(json.dumps(config(**changes)).encode())[1])


def scale(name: str = "model.layers.0.self_attn.q_proj", rank: int = 4, **changes: object) -> float:
    found, faults = read_config(json.dumps(config(**changes)).encode())
    assert found is not None
    assert not faults
    return found.scale(found.alphas_of(name)[0], rank)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "only LORA"),
        ({"peft_type": "ADALORA"}, "only LORA"),
        ({"peft_type": ...}, "only LORA"),
        ({"use_dora": "yes"}, "neither true nor false"),
        ({"use_dora": True, "lora_bias": True}, "DoRA has no LoRA biases"),
        ({"use_dora": True, "alora_invocation_tokens": [1]}, "cannot use DoRA"),
        ({"bias": "some"}, "is none of none, all, lora_only"),
        ({"modules_to_save": "lm_head"}, "not a list of names"),
        ({"trainable_token_indices": [1, -1]}, "not a list of token ids"),
        ({"trainable_token_indices": [1, 1]}, "names a token twice"),
        ({"trainable_token_indices": {"norm": [1]}}, "only embed_tokens and lm_head"),
        ({"alora_invocation_tokens": ["a"]}, "not a list of token ids"),
        ({"alora_invocation_tokens": [0] * 1025}, "at most"),
        ({"layer_replication": [[0, 2]]}, "replicated layers"),
        ({"target_parameters": ["mlp.experts"]}, "bare parameters"),
        ({"kasa_config": {"a": 1}}, "KaSA"),
        *(({f"{name}_config": {}}, f"{name}_config") for name in ("kasa", "arrow", "velora")),
        ({"use_bdlora": {}}, "block-diagonal LoRA"),
        ({"init_lora_weights": "pissa"}, "changes the base's weights"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base's weights"),
        ({"init_lora_weights": "olora"}, "changes the base's weights"),
        ({"init_lora_weights": "loftq"}, "changes the base's weights"),
        ({"init_lora_weights": ["eva"]}, "changes the base's weights"),
        ({"alora_invocation_string": "<go>"}, "alora_invocation_string: only alora_invocation_tok"),
        ({"rank_pattern": {"(?!x)" + "y" * 300: 4}}, "only plain groups are matched"),
        ({"rank_pattern": {r"\bq_proj": 4}}, r"pattern '\\bq_proj': \\b is not matched"),
        ({"r": ...}, "PEFT would assume 8"),
        ({"lora_alpha": ...}, "PEFT would assume 8"),
        ({"r": 0}, "not a positive integer"),
        ({"r": -4}, "not a positive integer"),
        ({"r": "4"}, "not a positive integer"),
        ({"r": 4.0}, "not a positive integer"),
        ({"r": True}, "not a positive integer"),
        ({"r": 10**9}, "not a positive integer"),
        ({"lora_alpha": True}, "not a finite number"),
        ({"lora_alpha": None}, "not a finite number"),
        ({"lora_alpha": "16"}, "not a finite number"),
        ({"lora_alpha": float("nan")}, "not a finite number"),
        ({"lora_alpha": float("-inf")}, "not a finite number"),
        ({"lora_alpha": 10**400}, "not a finite number"),
        ({"use_rslora": "false"}, "neither true nor false"),
        ({"rank_pattern": {"q_proj": 0}}, "q_proj: 0 is not a positive integer"),
        ({"alpha_pattern": {"q_proj": None}}, "q_proj: null is not a finite number"),
        ({"alpha_pattern": {"(a+)+\\1": 4}}, "is not matched"),
        ({"rank_pattern": [1]}, "must be an object"),
        ({"alpha_pattern": {str(i): 1 for i in range(5000)}}, "must be an object"),
        ({"target_modules": 7}, "neither a list of names nor a pattern"),
        ({"layers_to_transform": "all"}, "not a list of layer numbers"),
    ],
)
def test_names_what_is_wrong(changes, said):
    assert said in problems(**changes)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"r": 4, "r": 8}', "duplicate name r"),
        (b'{"lora_alpha": 1' + b"0" * 9000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_refuses_what_is_not_a_config(data, said):
    found, faults = read_config(data)
    assert found is None
    assert said in faults[0]


def test_lists_every_fault_at_once():
    text = problems(use_dora=1, r="x", lora_alpha=..., bias="x", modules_to_save=4)
    assert all(word in text for word in ("use_dora", "r:", "lora_alpha", "bias", "modules_to_save"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2.0),
        ({"lora_alpha": 3}, 0.75),
        ({"lora_alpha": 0}, 0.0),
        ({"lora_alpha": -8}, -2.0),
        ({"lora_alpha": 2.5}, 0.625),
        ({"use_rslora": True}, 4.0),
        ({"use_rslora": None}, 2.0),
        ({"alpha_pattern": {"q_proj": 16}}, 4.0),
        ({"alpha_pattern": {"k_proj": 16}}, 2.0),
        ({"alpha_pattern": {".*q_proj": -4, "q_proj": 16}}, -1.0),
        ({"alpha_pattern": {"proj": 16}}, 2.0),
        ({"alpha_pattern": {"q_proj": 16}, "use_rslora": True}, 8.0),
    ],
)
def test_scale(changes, expected):
    assert scale(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": None},
        {"target_modules": "all-linear"},
        {"target_modules": ["all-linear"]},
        {"target_modules": "(a+)+b"},
        {"target_modules": {"q_proj": 1}},
        {"alora_invocation_tokens": []},
        {"modules_to_save": []},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": False},
        {"layers_to_transform": 1},
        {"layers_to_transform": [0, 2], "layers_pattern": "layers"},
        {"rank_pattern": None, "alpha_pattern": None},
        {"bias": ...},
        {"loftq_config": {}, "megatron_core": "megatron.core", "lora_dropout": 0.1},
    ],
)
def test_accepts_what_does_not_change_the_result(changes):
    assert problems(**changes) == ""


def test_notes_settings_it_does_not_know():
    found, faults = read_config(json.dumps(config(use_new_thing=True, unset=None)).encode())
    assert not faults
    assert found is not None
    assert found.warnings == ("adapter_config.json: settings not known here: use_new_thing",)
