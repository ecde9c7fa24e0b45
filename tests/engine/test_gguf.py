import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.errors import CheckpointInvalid
from engine.quant.gguf import GgufCheckpoint, half_split_rows, hugging_face_name
from tests.engine.gguf_files import HEADS, HIDDEN, KV_HEADS, tiny_tensors, write_gguf


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return GgufCheckpoint(write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf"))


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.from_str(json.dumps(checkpoint.tokenizer().tokenizer))


@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 4), (9, 64)])
def test_half_split_rows_undoes_the_interleaving_of_rotary_pairs(heads, dim):
    original = np.arange(heads * dim * 5, dtype=np.float32).reshape(heads * dim, 5)
    interleaved = original.copy()
    for head in range(heads):
        for i in range(dim // 2):  # llama.cpp keeps pair (i, i + dim/2) next to each other
            interleaved[head * dim + 2 * i] = original[head * dim + i]
            interleaved[head * dim + 2 * i + 1] = original[head * dim + i + dim // 2]
    assert np.array_equal(half_split_rows(interleaved, heads), original)


def test_every_tensor_comes_out_under_its_hugging_face_name(checkpoint):
    tensors = dict(checkpoint.tensors())
    assert len(tensors) == len(tiny_tensors())
    down = tiny_tensors()["blk.1.ffn_down.weight"]
    assert np.array_equal(tensors["model.layers.1.mlp.down_proj.weight"], down)


@pytest.mark.parametrize(("name", "heads"), [("q", HEADS), ("k", KV_HEADS)])
def test_query_and_key_rows_are_put_back_in_half_split_order(checkpoint, name, heads):
    stored = tiny_tensors()[f"blk.0.attn_{name}.weight"]
    read = dict(checkpoint.tensors())[f"model.layers.0.self_attn.{name}_proj.weight"]
    assert not np.array_equal(read, stored)
    assert np.array_equal(read, half_split_rows(stored, heads))


def test_config_carries_the_rope_keys_of_both_generations(checkpoint):
    config = checkpoint.config()
    assert config["rope_theta"] == 10000.0
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert (config["hidden_size"], config["head_dim"]) == (HIDDEN, HIDDEN // HEADS)
    assert config["rms_norm_eps"] == 1e-5
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


@pytest.mark.parametrize("text", ["in 1984", "  two  spaces", "naïve 中文 🙂\n\ttab", ""])
def test_the_tokenizer_gives_back_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_split_before_merges_apply(tokenizer):
    assert tokenizer.encode("in 19").tokens == ["in", "Ġ", "1", "9"]


def test_control_tokens_are_one_token_each(tokenizer):
    assert tokenizer.encode("<|im_start|>in<|im_end|>").ids[::2] == [1, 2]


def test_another_architecture_is_refused(tmp_path):
    with pytest.raises(CheckpointInvalid, match="'gemma3'"):
        GgufCheckpoint(write_gguf(tmp_path / "other.gguf", architecture="gemma3"))


def test_another_tokenizer_family_is_refused(tmp_path):
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "other.gguf", pre="llama-bpe"))
    with pytest.raises(CheckpointInvalid, match="'llama-bpe'"):
        checkpoint.tokenizer()


def test_a_tensor_without_a_place_in_the_model_is_refused_by_name(tmp_path):
    path = write_gguf(tmp_path / "odd.gguf", extra=("blk.0.attn_q.bias",))
    with pytest.raises(CheckpointInvalid, match=r"blk\.0\.attn_q\.bias"):
        dict(GgufCheckpoint(path).tensors())


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04 not this" * 10])
def test_a_file_that_is_not_gguf_is_refused(tmp_path, content):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointInvalid, match=r"bad\.gguf"):
        GgufCheckpoint(path)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q", "blk.0.ffn_gate_inp.weight"])
def test_unknown_names_are_refused(name):
    with pytest.raises(CheckpointInvalid, match="no place"):
        hugging_face_name(name)
