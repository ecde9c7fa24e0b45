"""Small random checkpoints whose weights take a byte a number, with the dense ones they stand
for. Written from the formats' definitions, one number at a time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.engine.checkpoints import Shape, Tensors, save, write_checkpoint

GROUP = 32


@dataclass(frozen=True)
class ByteLayout:
    kind: str  # float or int
    scales: str  # tensor, channel, group, block
    method: str = "compressed-tensors"  # or fp8
    symmetric: bool = True
    activations: bool = False  # whether the config says how inputs would be quantised
    block: tuple[int, int] = (128, 128)
    dtype: torch.dtype = torch.float32  # of scales

    def __str__(self) -> str:
        words = [self.method, self.kind, self.scales, "" if self.symmetric else "asym"]
        return "-".join([*filter(None, words), str(self.dtype)[6:]])

    @property
    def config(self) -> dict[str, Any]:
        if self.method == "fp8":
            block = {"weight_block_size": list(self.block)} if self.scales == "block" else {}
            return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"} | block
        weights = {
            "num_bits": 8,
            "type": self.kind,
            "symmetric": self.symmetric,
            "strategy": self.scales,
            "group_size": GROUP if self.scales == "group" else None,
            "block_structure": list(self.block) if self.scales == "block" else None,
        }
        inputs = {"num_bits": 8, "type": self.kind, "dynamic": True, "strategy": "token"}
        group = {"targets": ["Linear"], "weights": weights}
        return {
            "quant_method": "compressed-tensors",
            "format": f"{self.kind}-quantized",
            "config_groups": {
                "group_0": group | {"input_activations": inputs if self.activations else None}
            },
            "ignore": ["lm_head"],
        }


BYTE_LAYOUTS = [
    ByteLayout("float", "tensor", activations=True),
    ByteLayout("float", "channel", dtype=torch.bfloat16, activations=True),
    ByteLayout("float", "group"),
    ByteLayout("float", "block", dtype=torch.bfloat16),
    ByteLayout("float", "block", method="fp8"),
    ByteLayout("float", "block", method="fp8", block=(32, 64)),
    ByteLayout("float", "tensor", method="fp8"),
    ByteLayout("int", "channel", activations=True),
    ByteLayout("int", "tensor"),
    ByteLayout("int", "group", dtype=torch.float16),
    ByteLayout("int", "channel", symmetric=False),
]


def byte_module(
    K: int, N: int, layout: ByteLayout, random: torch.Generator
) -> tuple[Tensors, torch.Tensor]:
    """The tensors of one module without its name, and its dense float32 weight [N, K]."""
    rows, columns = {
        "tensor": (N, K),
        "channel": (1, K),
        "group": (1, GROUP),
        "block": layout.block,
    }[layout.scales]
    shape = (-(-N // rows), -(-K // columns))
    scales = ((torch.rand(shape, generator=random) + 0.5) * K**-0.5 / 60).to(layout.dtype)
    n, k = torch.arange(N) // rows, torch.arange(K) // columns
    each = scales.float()[n][:, k]
    parts: Tensors = {}
    if layout.kind == "float":
        values = (torch.randn(N, K, generator=random) * 60).to(torch.float8_e4m3fn)
        dense = values.float() * each
    else:
        values = torch.randint(-128, 128, (N, K), generator=random, dtype=torch.int8)
        zeros = torch.zeros(shape, dtype=torch.int8)
        if not layout.symmetric:
            zeros = torch.randint(-5, 6, shape, generator=random, dtype=torch.int8)
            parts["weight_zero_point"] = zeros
        dense = (values.float() - zeros.float()[n][:, k]) * each
    name = "weight_scale_inv" if layout.method == "fp8" and layout.scales == "block" else None
    if layout.scales == "tensor":
        scales = scales.reshape(1)
    return parts | {"weight": values, name or "weight_scale": scales}, dense


def write_bytes(
    path: Path, layout: ByteLayout, shape: Shape | None = None
) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """A checkpoint with these linears: stored tensors, dense ones, config."""
    shape = shape or Shape()
    plain = write_checkpoint(path, shape)
    random = torch.Generator().manual_seed(1)
    stored, dense = dict(plain.dense), dict(plain.dense)
    for layer in range(shape.layers):
        for module, (K, N) in shape.linears().items():
            name = f"model.layers.{layer}.{module}"
            parts, dense[f"{name}.weight"] = byte_module(K, N, layout, random)
            stored |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    config = shape.config | {"quantization_config": layout.config}
    save(path, stored, config)
    return stored, dense, config
