"""Which tensors make up a packed module, told by the name of the one that holds its codes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.errors import CheckpointInvalid
from engine.quant.compressed import CompressedTensors, unpack_compressed
from engine.quant.formats import PackedTensors, Quantised, unpack
from engine.quant.schemes import Claim, Method

Tensors = Mapping[str, torch.Tensor]
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Packing:
    """``unpack`` takes the module's name, its tensors by part, its size (K, N) and its claim."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    unpack: Callable[[str, Tensors, Size, Claim], Quantised]

    def parts(self, module: str, stored: Mapping[str, object]) -> list[str]:
        """Those of the module that are ``stored``. Raises CheckpointInvalid when one is missing."""
        codes = self.required[0]
        for part in self.required:
            if f"{module}.{part}" not in stored:
                raise CheckpointInvalid(f"{module}: found {codes} and no {part}; expected both")
        return [part for part in (*self.required, *self.optional) if f"{module}.{part}" in stored]


PACKINGS: Mapping[str, Packing] = {
    "qweight": Packing(
        required=("qweight", "qzeros", "scales"),
        optional=("g_idx",),
        unpack=lambda module, tensors, size, claim: unpack(
            PackedTensors(module=module, **tensors), size, claim
        ),
    ),
    "weight_packed": Packing(
        required=("weight_packed", "weight_scale", "weight_shape"),
        optional=("weight_zero_point", "weight_g_idx"),
        unpack=lambda module, tensors, size, claim: unpack_compressed(
            CompressedTensors(module=module, **tensors), size, claim
        ),
    ),
}


def method_of(tensors: Tensors, size: Size) -> Method:
    """By which method a module of this ``size`` was packed."""
    if "weight_packed" in tensors:
        return "compressed-tensors"
    return "awq" if tensors["qweight"].shape[0] == size[0] else "gptq"
