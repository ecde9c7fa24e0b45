"""A base's facts are read from its checkpoint, whatever its storage type or sharding."""

import json
from pathlib import Path

import numpy as np
import pytest

from adapters.base_spec import BaseSpec
from adapters.errors import BaseUnreadable
from tests.adapters.builders import Tensors, encode, pack_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_theta": 1e4},
}
VALUES = np.random.default_rng(0).integers(-8, 8, (64, 24)) / 8


def weights(dtype: str = "F32", scale: float = 1.0) -> Tensors:
    return {
        "model.embed_tokens.weight": encode(VALUES * scale, dtype),
        "model.norm.weight": encode(np.ones(24), dtype),
        "model.layers.0.input_layernorm.weight": encode(np.ones(24), dtype),
        "model.layers.0.mlp.up_proj.qweight": encode(np.ones((3, 40)), "F32"),
    }


def checkpoint(path: Path, tensors: Tensors | None = None, **changes: object) -> Path:
    path.mkdir()
    settings = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
    (path / "config.json").write_text(json.dumps(settings))
    (path / "model.safetensors").write_bytes(pack_file(tensors or weights()))
    return path


def test_reads_the_shape(tmp_path):
    spec = BaseSpec.from_checkpoint(checkpoint(tmp_path / "base"))
    assert (spec.num_layers, spec.head_dim, spec.max_position) == (2, 6, 128)
    assert spec.tie_word_embeddings
    assert spec.shape_of("q_proj") == (24, 24)
    assert spec.shape_of("k_proj") == spec.shape_of("v_proj") == (24, 12)
    assert spec.shape_of("o_proj") == (24, 24)
    assert spec.shape_of("gate_proj") == spec.shape_of("up_proj") == (24, 40)
    assert spec.shape_of("down_proj") == (40, 24)


def test_heads_may_be_wider_than_their_share(tmp_path):
    spec = BaseSpec.from_checkpoint(
        checkpoint(tmp_path / "base", head_dim=16, num_key_value_heads=...)
    )
    assert spec.shape_of("q_proj") == spec.shape_of("k_proj") == (24, 64)
    assert spec.shape_of("o_proj") == (64, 24)


def test_a_config_without_architectures_is_of_its_models_type(tmp_path):
    path = checkpoint(tmp_path / "base", architectures=..., model_type="qwen2")
    assert BaseSpec.from_checkpoint(path).architecture == "Qwen2ForCausalLM"


def test_a_qwen3_that_states_no_head_size_has_heads_of_128(tmp_path):
    names = {"architectures": ["Qwen3ForCausalLM"]}
    spec = BaseSpec.from_checkpoint(checkpoint(tmp_path / "base", **names))
    assert spec.shape_of("q_proj") == (24, 4 * 128)


def test_norms_of_heads_are_part_of_the_fingerprint(tmp_path):
    def fingerprint(name: str, scale: float) -> str:
        norm = {"model.layers.0.self_attn.q_norm.weight": encode(np.ones(6) * scale, "F32")}
        return BaseSpec.from_checkpoint(checkpoint(tmp_path / name, weights() | norm)).fingerprint

    assert fingerprint("a", 1.0) == fingerprint("b", 1.0) != fingerprint("c", 2.0)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_the_fingerprint_survives_storage_type_quantisation_and_context_length(tmp_path, dtype):
    plain = BaseSpec.from_checkpoint(checkpoint(tmp_path / "a"))
    kept = {name: value for name, value in weights(dtype).items() if "qweight" not in name}
    path = checkpoint(tmp_path / "b", kept, max_position_embeddings=512)
    assert BaseSpec.from_checkpoint(path).fingerprint == plain.fingerprint


def test_the_fingerprint_survives_sharding_and_the_links_of_a_download_cache(tmp_path):
    whole = checkpoint(tmp_path / "a")
    path = checkpoint(tmp_path / "b")
    (path / "model.safetensors").unlink()
    files = {}
    for index, (name, value) in enumerate(weights().items()):
        files[name] = f"part-{9 - index}.safetensors"
        (tmp_path / files[name]).write_bytes(pack_file({name: value}))
        (path / files[name]).symlink_to(tmp_path / files[name])
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    first, second = map(BaseSpec.from_checkpoint, (whole, path))
    assert first == second


def test_files_beside_the_checkpoint_are_not_part_of_it(tmp_path):
    """Some are published with the same weights under other names, or with an adapter."""
    whole, path = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    (path / "other.safetensors").write_bytes(pack_file(weights(scale=2.0)))
    assert BaseSpec.from_checkpoint(whole) == BaseSpec.from_checkpoint(path)


def test_another_base_has_another_fingerprint(tmp_path):
    first = BaseSpec.from_checkpoint(checkpoint(tmp_path / "a"))
    other = BaseSpec.from_checkpoint(checkpoint(tmp_path / "b", weights(scale=2.0)))
    wider = BaseSpec.from_checkpoint(checkpoint(tmp_path / "c", intermediate_size=48))
    assert len({first.fingerprint, other.fingerprint, wider.fingerprint}) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"architectures": []}, "architectures"),
        ({"architectures": ..., "model_type": "nano"}, "architectures"),
    ],
)
def test_names_the_field_it_cannot_read(tmp_path, changes, said):
    with pytest.raises(BaseUnreadable, match=said):
        BaseSpec.from_checkpoint(checkpoint(tmp_path / "base", **changes))


def test_names_the_file_it_cannot_read(tmp_path):
    with pytest.raises(BaseUnreadable, match=r"config\.json: not found"):
        BaseSpec.from_checkpoint(tmp_path)
    path = checkpoint(tmp_path / "base")
    (path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(BaseUnreadable, match=r"model\.safetensors: truncated"):
        BaseSpec.from_checkpoint(path)
    (path / "model.safetensors").write_bytes(pack_file({"other": encode(np.ones(1))}))
    with pytest.raises(BaseUnreadable, match="no embeddings or norms"):
        BaseSpec.from_checkpoint(path)
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(BaseUnreadable, match="leads out of the directory"):
        BaseSpec.from_checkpoint(path)
