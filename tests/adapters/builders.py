"""Adapter directories made to order, without torch or PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adapters.base_spec import BaseSpec
from adapters.keys import PARENTS

BASE = BaseSpec(
    architecture="LlamaForCausalLM",
    hidden_size=24,
    intermediate_size=40,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    vocab_size=64,
    tie_word_embeddings=True,
    max_position=128,
    fingerprint="f" * 64,
)
PREFIX = "base_model.model."
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]  # name -> dtype, shape, bytes


def config(**changes: object) -> dict[str, object]:
    """A plain LoRA config; a change to ``...`` removes the key."""
    settings: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some/base",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    settings |= changes
    return {key: value for key, value in settings.items() if value is not ...}


def encode(values: np.ndarray, dtype: str = "F32") -> tuple[str, tuple[int, ...], bytes]:
    if dtype == "BF16":
        data = (values.astype("<f4").view(np.uint32) >> 16).astype("<u2").tobytes()
    else:
        code = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "<i1"}[dtype]
        data = values.astype(code).tobytes()
    return dtype, values.shape, data


def lora(
    layer: int = 0, module: str = "q_proj", *, rank: int = 4, dtype: str = "F32", seed: int = 0
) -> Tensors:
    """A and B of one module of BASE."""
    inputs, outputs = BASE.shape_of(module)
    random = np.random.default_rng([seed, layer, *module.encode()])
    name = f"{PREFIX}model.layers.{layer}.{PARENTS[module]}.{module}"
    return {
        f"{name}.lora_A.weight": encode(random.standard_normal((rank, inputs)), dtype),
        f"{name}.lora_B.weight": encode(random.standard_normal((outputs, rank)), dtype),
    }


def pack_file(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position, body = 0, b""
    for name, (dtype, shape, data) in tensors.items():
        offsets = [position, position + len(data)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        position, body = offsets[1], body + data
    return frame(json.dumps(header).encode(), body)


def frame(header: bytes, body: bytes) -> bytes:
    """Header padded to 8 bytes, as writers do."""
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + body


def write_adapter(
    directory: Path, settings: object = None, tensors: Tensors | bytes | None = None
) -> Path:
    """``settings`` and ``tensors`` may also be the bytes of the file."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = config() if settings is None else settings
    raw = settings if isinstance(settings, bytes) else json.dumps(settings).encode()
    (directory / "adapter_config.json").write_bytes(raw)
    tensors = lora() if tensors is None else tensors
    data = tensors if isinstance(tensors, bytes) else pack_file(tensors)
    (directory / "adapter_model.safetensors").write_bytes(data)
    return directory
