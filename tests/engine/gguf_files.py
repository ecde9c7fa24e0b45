"""A tiny random Llama in a GGUF file, for tests that need a source checkpoint."""

from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 2, 1, 96, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ["i n", "1 9"]  # the second must never apply: digits are split first


def vocabulary() -> list[str]:
    return [*SPECIAL, *sorted(ByteLevel.alphabet()), "in", "19"]


def tiny_tensors() -> dict[str, np.ndarray]:
    """By GGUF name; matrices [rows, columns], rows of Q and K in llama.cpp's order."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    tensors = {"token_embd.weight": matrix(len(vocabulary()), HIDDEN), "output_norm.weight": norm()}
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        block = {
            "attn_q": matrix(HIDDEN, HIDDEN),
            "attn_k": matrix(kv, HIDDEN),
            "attn_v": matrix(kv, HIDDEN),
            "attn_output": matrix(HIDDEN, HIDDEN),
            "ffn_gate": matrix(INNER, HIDDEN),
            "ffn_up": matrix(INNER, HIDDEN),
            "ffn_down": matrix(HIDDEN, INNER),
            "attn_norm": norm(),
            "ffn_norm": norm(),
        }
        tensors |= {f"blk.{layer}.{name}.weight": value for name, value in block.items()}
    return tensors


def write_gguf(
    path: Path, *, architecture: str = "llama", pre: str = "smollm", extra: tuple[str, ...] = ()
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in tiny_tensors().items():
        writer.add_tensor(name, value)
    for name in extra:
        writer.add_tensor(name, np.zeros(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
