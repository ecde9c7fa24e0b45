"""What a config says about windows is read or refused; other architectures are refused by name."""

import pytest

from engine.errors import CheckpointInvalid
from engine.models.spec import ModelSpec
from tests.engine.checkpoints import Shape


def read(**config):
    return ModelSpec.read(Shape(layers=4).config | config)


def refusal(**config):
    with pytest.raises(CheckpointInvalid) as caught:
        read(**config)
    return str(caught.value)


QWEN = {"architectures": ["Qwen2ForCausalLM"]}
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({}, (0, 0, 0, 0)),
        (QWEN | {"sliding_window": 8}, (0, 0, 0, 0)),
        (QWEN | {"use_sliding_window": True, "sliding_window": 8}, (0, 0, 0, 0)),
        (
            QWEN | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
            (0, 0, 0, 8),
        ),
        (
            QWEN | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
            (8, 8, 8, 8),
        ),
        (
            QWEN | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
            (0, 0, 0, 0),
        ),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, (8, 8, 8, 8)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (0, 0, 0, 0)),
        ({"architectures": ["MistralForCausalLM"]}, (4096,) * 4),
    ],
)
def test_the_windows_of_layers(config, windows):
    assert read(**config).windows == windows


def test_layer_types_without_a_window_are_refused():
    said = refusal(**QWEN, layer_types=[FULL, SLIDING, FULL, FULL], sliding_window=8)
    assert "use_sliding_window is false" in said


@pytest.mark.parametrize(
    "kinds", [[FULL], [FULL, FULL, FULL, "chunked_attention"], 4, [[FULL]] * 4]
)
def test_layer_types_that_we_do_not_know_are_refused(kinds):
    assert "layer_types" in refusal(**QWEN, layer_types=kinds)


def test_a_mistral_with_alternating_windows_is_refused():
    kinds = [FULL, SLIDING, FULL, SLIDING]
    said = refusal(architectures=["MistralForCausalLM"], sliding_window=8, layer_types=kinds)
    assert "Ministral" in said


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("MixtralForCausalLM", "mixture-of-experts"),
        ("Qwen2MoeForCausalLM", "mixture-of-experts"),
        ("Qwen3MoeForCausalLM", "router"),
        ("Qwen3NextForCausalLM", "state"),
        ("GptOssForCausalLM", "sinks"),
        ("DeepseekV3ForCausalLM", "latent"),
        ("OlmoeForCausalLM", "experts"),
        ("Llama4ForConditionalGeneration", "experts"),
        ("Qwen2_5_VLForConditionalGeneration", "images"),
        ("Mistral3ForConditionalGeneration", "images"),
        ("MinistralForCausalLM", "alternate"),
        ("GemmaForCausalLM", "sqrt"),
        ("Gemma2ForCausalLM", "soft-capped"),
        ("Gemma3ForCausalLM", "alternate"),
        ("RecurrentGemmaForCausalLM", "recurrent"),
        ("PhiForCausalLM", "side by side"),
        ("Phi3ForCausalLM", "longrope"),
        ("PhiMoEForCausalLM", "experts"),
        ("GPTNeoXForCausalLM", "one module"),
        ("GPT2LMHeadModel", "learned positions"),
        ("MambaForCausalLM", "state"),
        ("JambaForCausalLM", "experts"),
        ("BertForMaskedLM", "generates no text"),
        ("InternLM3ForCausalLM", "biases"),
        ("NemotronHForCausalLM", "state-space"),
        ("ApertusForCausalLM", "xIELU"),
        ("Qwen3Model", "output head"),
    ],
)
def test_another_architecture_is_refused_by_name_with_what_it_would_need(name, need):
    said = refusal(architectures=[name], hidden_act="gelu")
    assert repr(name) in said
    assert "LlamaForCausalLM" in said
    assert "It would need" in said
    assert need in said


@pytest.mark.parametrize(
    "config", [{"architectures": ["NewForCausalLM"]}, {"architectures": []}, {"architectures": 1}]
)
def test_a_name_we_know_nothing_of_is_refused_with_the_ones_we_serve(config):
    said = refusal(**config)
    assert "Qwen3ForCausalLM" in said
    assert "would need" not in said


@pytest.mark.parametrize(("kind", "name"), [("llama", "Llama"), ("qwen3", "Qwen3")])
def test_a_config_that_names_no_architecture_is_of_its_type(kind, name):
    assert read(architectures=None, model_type=kind).architecture == f"{name}ForCausalLM"
    assert "'?' is not served" in refusal(architectures=None, model_type="nano")


@pytest.mark.parametrize("kinds", [[SLIDING] * 4, [FULL] * 3 + [SLIDING], "full_attention", []])
def test_a_llama_with_windows_is_refused(kinds):
    assert "layer_types=" in refusal(layer_types=kinds)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": None, "dtype": "float16"}, "float16"),
        ({"torch_dtype": "auto"}, "bfloat16"),
        ({"torch_dtype": None, "dtype": {"text": "float16"}}, "bfloat16"),
    ],
)
def test_a_type_that_is_not_said_is_the_one_of_the_weights(config, dtype):
    assert ModelSpec.read(Shape().config | config, stored="bfloat16").dtype == dtype


@pytest.mark.parametrize("key", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_a_word_is_not_taken_for_a_flag(key):
    assert f"{key}='false'; expected true or false" in refusal(**{key: "false"})


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_under_a_dense_name_are_refused(key):
    assert f"{key}=8" in refusal(**{key: 8})
