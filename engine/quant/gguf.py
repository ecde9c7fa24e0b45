"""A Llama checkpoint in a GGUF file, seen as the Hugging Face layout.

GGUF stores the same model under other names, with two differences in content: the rows of
``q_proj`` and ``k_proj`` are interleaved for llama.cpp's rotary embedding, and the tokenizer is
a list of tokens and merges. Both are undone here; weights come out dense, in float32.

Only what the demo base needs is read: the ``llama`` architecture without rope scaling, tied
heads, and byte-level BPE of the ``smollm`` family. Anything else raises ``CheckpointInvalid``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from engine.errors import CheckpointInvalid

Json = dict[str, object]
Matrix = npt.NDArray[np.float32]

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_PER_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_CONTROL_TOKEN = 3  # llama.cpp's token_type of tokens that never come from text


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The three files a Hugging Face tokenizer consists of."""

    tokenizer: Json
    config: Json
    chat_template: str


class GgufCheckpoint:
    """One memory-mapped GGUF file. Opening it reads the header only."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise CheckpointInvalid(f"{path} cannot be read as GGUF: {error}") from error
        if (found := self._value("general.architecture")) != "llama":
            raise CheckpointInvalid(f"{path} holds a {found!r} model; only 'llama' can be read")

    def config(self) -> Json:
        """The content of config.json, with the rope keys of transformers 4 and 5."""
        theta = self._number("llama.rope.freq_base")
        heads = int(self._number("llama.attention.head_count"))
        hidden = int(self._number("llama.embedding_length"))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": int(self._number("llama.feed_forward_length")),
            "num_hidden_layers": int(self._number("llama.block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self._number("llama.attention.head_count_kv")),
            "head_dim": hidden // heads,
            "hidden_act": "silu",
            "vocab_size": int(self._number("llama.vocab_size")),
            "max_position_embeddings": int(self._number("llama.context_length")),
            "rms_norm_eps": float(f"{self._number('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "float16",
            **self._special_ids(),
        }

    def generation_config(self) -> Json:
        return self._special_ids()

    def tokenizer(self) -> Tokenizer:
        if (found := self._value("tokenizer.ggml.pre")) != "smollm":
            raise CheckpointInvalid(f"the tokenizer family is {found!r}; only 'smollm' can be read")
        tokens = self._strings("tokenizer.ggml.tokens")
        kinds = self._value("tokenizer.ggml.token_type")
        assert isinstance(kinds, list)
        special = [i for i, kind in enumerate(kinds) if kind == _CONTROL_TOKEN]
        names = {role: tokens[i] for role, i in self._special_tokens().items()}
        template = str(self._value("tokenizer.chat_template"))
        config: Json = {
            **names,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "additional_special_tokens": [names["bos_token"], names["eos_token"]],
            "model_max_length": int(self._number("llama.context_length")),
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        }
        merges = self._strings("tokenizer.ggml.merges")
        return Tokenizer(_byte_level_bpe(tokens, merges, special), config, template)

    def tensors(self) -> Iterator[tuple[str, Matrix]]:
        """Every tensor under its Hugging Face name, float32, one at a time."""
        for tensor in self._reader.tensors:
            weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            name = hugging_face_name(tensor.name)
            if name.endswith("q_proj.weight"):
                weight = half_split_rows(weight, int(self._number("llama.attention.head_count")))
            elif name.endswith("k_proj.weight"):
                weight = half_split_rows(weight, int(self._number("llama.attention.head_count_kv")))
            yield name, weight

    def _special_tokens(self) -> dict[str, int]:
        keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        return {
            f"{role}_token": int(self._number(f"tokenizer.ggml.{key}_token_id"))
            for role, key in keys.items()
        }

    def _special_ids(self) -> Json:
        ids = self._special_tokens()
        return {f"{role}_token_id": ids[f"{role}_token"] for role in ("bos", "eos", "pad")}

    def _value(self, key: str) -> object:
        field = self._reader.get_field(key)
        if field is None:
            raise CheckpointInvalid(f"the GGUF file has no {key}")
        value: object = field.contents()
        return value

    def _number(self, key: str) -> float:
        value = self._value(key)
        if not isinstance(value, int | float):
            raise CheckpointInvalid(f"the GGUF file's {key} is {value!r}, not a number")
        return value

    def _strings(self, key: str) -> list[str]:
        value = self._value(key)
        if not isinstance(value, list):
            raise CheckpointInvalid(f"the GGUF file's {key} is not a list")
        return [str(item) for item in value]


def hugging_face_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match name.split("."):
        case ["blk", layer, module, "weight"] if module in _PER_LAYER:
            return f"model.layers.{layer}.{_PER_LAYER[module]}.weight"
    raise CheckpointInvalid(f"the GGUF tensor {name!r} has no place in a Llama model")


def half_split_rows(weight: Matrix, heads: int) -> Matrix:
    """Undo llama.cpp's row order: pairs (2i, 2i+1) of a head become (i, i + D/2)."""
    rows, columns = weight.shape
    paired = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows, columns)


def _byte_level_bpe(tokens: list[str], merges: list[str], special: list[int]) -> Json:
    """tokenizer.json. Merges stay "a b" strings: older readers know no other form."""
    byte_level: Json = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, tokens[i]) for i in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            # Each digit is a token of its own before words are split; without this,
            # numbers after a space tokenise differently from the training data.
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def _added_token(token_id: int, content: str) -> Json:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
