"""A page holds whole units and whole tiles of K or V, however odd the model's heads are."""

import pytest

from engine.models.spec import ModelSpec
from engine.page_size import page_elements
from engine.placement import UNIT


@pytest.mark.parametrize("page_tokens", [1, 16, 48, 64])
@pytest.mark.parametrize("head_dim", [20, 24, 64, 80, 128])
@pytest.mark.parametrize(("item", "narrow"), [(2, False), (2, True), (4, True)])
def test_a_page_is_whole_units_and_whole_tiles(head_dim, page_tokens, item, narrow):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
        "hidden_size": 2 * head_dim, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": head_dim,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "rope_theta": 1e4,
        "tie_word_embeddings": True,
    }  # fmt: skip
    spec = ModelSpec.read(config, {})
    elements = page_elements(spec, page_tokens, item=item, narrow=narrow)
    assert elements % UNIT == 0
    assert elements % (page_tokens * head_dim) == 0
    vectors = spec.kv_elements(page_tokens) // head_dim
    each = head_dim + 4 if narrow else head_dim * item
    assert elements * item >= vectors * each
