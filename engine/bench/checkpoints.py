"""Random checkpoints and adapters of real shapes, in the real on-disk formats.

Speed does not depend on the values of the weights but on their shapes and layout, so benchmarks
and memory tests run on these. Nothing here is a model anyone should talk to.

``awq`` is AutoAWQ's gemm layout, ``gptq`` AutoGPTQ's v1 layout, ``gptq-act-order`` the same with a
permuted g_idx that q/k/v and gate/up share, ``fp16`` plain weights. ``fp8`` and ``int8`` are
compressed-tensors with a scale for each output, ``fp8-block`` e4m3 with one for 128 x 128 weights.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.bench.shapes import EIGHT_BITS, FORMATS, Shape

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
BLOCK = 128
SEQUENTIAL = tuple(range(8))
SHARED_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


def pack_nibbles(codes: torch.Tensor, dim: int, order: tuple[int, ...]) -> torch.Tensor:
    """Pack eight 4-bit codes along ``dim`` in one int32; nibble i holds element ``order[i]``."""
    last = codes.movedim(dim, -1)
    groups = last.reshape(*last.shape[:-1], -1, 8)
    word = torch.zeros(groups.shape[:-1], dtype=torch.int32, device=codes.device)
    for nibble, element in enumerate(order):
        word |= groups[..., element].to(torch.int32) << (4 * nibble)
    return word.movedim(-1, dim).contiguous()


def kept_checkpoint(cache: Path, shape: Shape, fmt: str) -> Path:
    """A random one in the cache, written where none is."""
    folder = cache / f"{shape.name}-{fmt}"
    if not (folder / "config.json").is_file():
        print(f"writing {folder}", file=sys.stderr, flush=True)
        CheckpointWriter(shape, fmt).write(folder)
    return folder


class CheckpointWriter:
    """Writes one random checkpoint, a file per layer."""

    def __init__(self, shape: Shape, fmt: str, *, group: int = 128, seed: int = 0) -> None:
        if fmt not in FORMATS:
            raise ValueError(f"format {fmt!r} is none of {', '.join(FORMATS)}")
        self.shape, self.format, self.group = shape, fmt, group
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.random = torch.Generator(device=self.device).manual_seed(seed)
        self._orders: dict[str, torch.Tensor] = {}

    def write(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        parts = self.shape.num_hidden_layers + 1
        index: dict[str, str] = {}
        for number, tensors in enumerate(self._files(), start=1):
            name = f"model-{number:05d}-of-{parts:05d}.safetensors"
            index.update(dict.fromkeys(tensors, name))
            cpu = {key: value.cpu().contiguous() for key, value in tensors.items()}
            save_file(cpu, out / name, metadata={"format": "pt"})
        (out / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": index})
        )
        (out / "config.json").write_text(json.dumps(self._config(), indent=1))

    def _config(self) -> dict[str, object]:
        config = self.shape.config()
        if self.format == "awq":
            config["quantization_config"] = {
                "quant_method": "awq", "bits": 4, "group_size": self.group,
                "zero_point": True, "version": "gemm", "modules_to_not_convert": None,
            }  # fmt: skip
        elif self.format == "fp8-block":
            config["quantization_config"] = {
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [BLOCK, BLOCK],
            }  # fmt: skip
        elif self.format in EIGHT_BITS:
            kind = "float" if self.format == "fp8" else "int"
            weights = {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True}
            config["quantization_config"] = {
                "quant_method": "compressed-tensors", "format": f"{kind}-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
                "ignore": ["lm_head"],
            }  # fmt: skip
        elif self.format != "fp16":
            config["quantization_config"] = {
                "quant_method": "gptq", "bits": 4, "group_size": self.group, "sym": False,
                "desc_act": self.format == "gptq-act-order", "checkpoint_format": "gptq",
            }  # fmt: skip
        return config

    def _files(self) -> Iterator[dict[str, torch.Tensor]]:
        hidden, vocab = self.shape.hidden_size, self.shape.vocab_size
        for layer in range(self.shape.num_hidden_layers):
            yield self._layer(f"model.layers.{layer}")
        last = {
            "model.embed_tokens.weight": self._normal(vocab, hidden, std=1.0),
            "model.norm.weight": 1 + self._normal(hidden),
        }
        if not self.shape.tie_word_embeddings:
            last["lm_head.weight"] = self._normal(vocab, hidden, std=hidden**-0.5)
        yield last

    def _layer(self, prefix: str) -> dict[str, torch.Tensor]:
        self._orders.clear()
        tensors = {
            f"{prefix}.input_layernorm.weight": 1 + self._normal(self.shape.hidden_size),
            f"{prefix}.post_attention_layernorm.weight": 1 + self._normal(self.shape.hidden_size),
        }
        for name, (inputs, outputs) in self.shape.linears().items():
            for suffix, tensor in self._linear(name, inputs, outputs).items():
                tensors[f"{prefix}.{name}.{suffix}"] = tensor
            if self.shape.qkv_bias and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                tensors[f"{prefix}.{name}.bias"] = self._normal(outputs)
        if self.shape.qk_norm:
            for norm in ("q_norm", "k_norm"):
                tensors[f"{prefix}.self_attn.{norm}.weight"] = 1 + self._normal(self.shape.head_dim)
        return tensors

    def _linear(self, name: str, inputs: int, outputs: int) -> dict[str, torch.Tensor]:
        if self.format == "fp16":
            return {"weight": self._normal(outputs, inputs, std=inputs**-0.5)}
        if self.format in EIGHT_BITS:
            return self._bytes(inputs, outputs)
        groups = inputs // self.group
        spread = torch.rand(groups, outputs, generator=self.random, device=self.device)
        scales = ((spread * 0.5 + 0.75) * (0.22 / inputs**0.5)).half()
        codes = self._integers(inputs, outputs, low=0, high=16)
        zeros = self._integers(groups, outputs, low=6, high=10)
        if self.format == "awq":
            return {
                "qweight": pack_nibbles(codes, 1, AWQ_ORDER),
                "qzeros": pack_nibbles(zeros, 1, AWQ_ORDER),
                "scales": scales,
            }
        return {
            "qweight": pack_nibbles(codes, 0, SEQUENTIAL),
            "qzeros": pack_nibbles(zeros - 1, 1, SEQUENTIAL),
            "scales": scales,
            "g_idx": self._group_index(name, inputs),
        }

    def _bytes(self, inputs: int, outputs: int) -> dict[str, torch.Tensor]:
        std = 60.0  # of codes, before scales
        if self.format == "int8":
            weight = self._integers(outputs, inputs, low=-104, high=104).to(torch.int8)
        else:
            weight = self._normal(outputs, inputs, std=std).to(torch.float8_e4m3fn)
        shape, name = (outputs, 1), "weight_scale"
        if self.format == "fp8-block":
            shape, name = (-(-outputs // BLOCK), -(-inputs // BLOCK)), "weight_scale_inv"
        spread = torch.rand(shape, generator=self.random, device=self.device)
        return {"weight": weight, name: (spread * 0.5 + 0.75) * (inputs**-0.5 / std)}

    def _group_index(self, name: str, inputs: int) -> torch.Tensor:
        index = torch.arange(inputs, device=self.device, dtype=torch.int32) // self.group
        if self.format != "gptq-act-order":
            return index
        module = name.rsplit(".", 1)[1]
        key = SHARED_INPUT.get(module, module)
        if key not in self._orders:
            self._orders[key] = torch.randperm(inputs, generator=self.random, device=self.device)
        return index[self._orders[key]]

    def _normal(self, *size: int, std: float = 0.02) -> torch.Tensor:
        values = torch.randn(*size, generator=self.random, device=self.device)
        return (values * std).half()

    def _integers(self, *size: int, low: int, high: int) -> torch.Tensor:
        return torch.randint(
            low, high, size, generator=self.random, device=self.device, dtype=torch.int32
        )


def write_adapter(out: Path, shape: Shape, *, rank: int, seed: int = 0) -> None:
    """A random PEFT adapter of one rank on all seven linears, strong enough to change answers."""
    out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random = torch.Generator(device=device).manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(shape.num_hidden_layers):
        for name, (inputs, outputs) in shape.linears().items():
            key = f"base_model.model.model.layers.{layer}.{name}"
            a = torch.randn(rank, inputs, generator=random, device=device) * inputs**-0.5
            b = torch.randn(outputs, rank, generator=random, device=device) * 0.1 * rank**-0.5
            tensors[f"{key}.lora_A.weight"] = a.half().cpu()
            tensors[f"{key}.lora_B.weight"] = b.half().cpu()
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank,
        "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "fan_in_fan_out": False,
        "target_modules": sorted(name.split(".")[1] for name in shape.linears()),
        "base_model_name_or_path": "random", "use_rslora": False, "use_dora": False,
        "modules_to_save": None,
    }  # fmt: skip
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1))
