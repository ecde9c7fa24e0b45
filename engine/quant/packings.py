"""Which tensors make up a packed module, told by the name of the one that holds its codes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.errors import CheckpointInvalid
from engine.quant.bytewise import Float8, unpack_bytes
from engine.quant.compressed import CompressedTensors, unpack_compressed
from engine.quant.formats import PackedTensors, Quantised, unpack
from engine.quant.schemes import Claim, Method

Tensors = Mapping[str, torch.Tensor]
Size = tuple[int, int]
Narrow = Quantised | Float8


@dataclass(frozen=True, slots=True)
class Packing:
    """``unpack`` takes the module's name, its tensors by part, its size (K, N) and its claim."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    unpack: Callable[[str, Tensors, Size, Claim], Narrow]

    @property
    def said(self) -> str:
        """What is found of a module."""
        return "weight in 8 bits" if self.required == ("weight",) else self.required[0]

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


BYTES = Packing(
    required=("weight",),
    optional=("weight_scale", "weight_scale_inv", "weight_zero_point"),
    unpack=unpack_bytes,
)
BYTE_TYPES = ("F8_E4M3", "I8")  # of a ``weight`` that is quantised, as safetensors calls them


class Stored(Protocol):
    @property
    def dtype(self) -> str: ...


def packing_of(module: str, stored: Mapping[str, Stored]) -> Packing | None:
    """How a module is quantised; None where its weight is dense or missing.

    Raises CheckpointInvalid when it is stored twice.
    """
    found = [part for part in ("weight", *PACKINGS) if f"{module}.{part}" in stored]
    if len(found) > 1:
        raise CheckpointInvalid(f"{module}: found both {' and '.join(found)}; expected one")
    if not found:
        return None
    if found[0] == "weight":
        return BYTES if stored[f"{module}.weight"].dtype in BYTE_TYPES else None
    return PACKINGS[found[0]]


def method_of(tensors: Tensors, size: Size, claim: Claim) -> Method:
    """By which method a module of this ``size`` was packed. Bytes of several look alike."""
    if "weight" in tensors:
        inverse = "weight_scale_inv" in tensors
        return claim.method or ("fp8" if inverse else "compressed-tensors")
    if "weight_packed" in tensors:
        return "compressed-tensors"
    return "awq" if tensors["qweight"].shape[:1] == size[:1] else "gptq"
