"""An adapter as tensors of the compute dtype, per module, with the scale folded into B."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid
from adapters.manifest import WEIGHTS_FILE, AdapterManifest, listed
from adapters.tensor_file import TensorFile, TensorInfo
from adapters.validate import shape_problems
from adapters.values import as_bits, as_dtype, as_float32, is_finite

STORED_AS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}


@dataclass(frozen=True, slots=True)
class Factor:
    """y += x A^T B^T"""

    a: Tensor  # [rank, input width]
    b: Tensor  # [output width, rank], scaled

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    digest: str
    rank: int
    factors: Mapping[tuple[int, str], Factor]  # by (layer, module), e.g. (3, "q_proj")

    @property
    def nbytes(self) -> int:
        return sum(factor.nbytes for factor in self.factors.values())


def pack(source: AdapterManifest | Path | str, base: BaseSpec, dtype: torch.dtype) -> PackedAdapter:
    """Raises AdapterInvalid when it does not fit the base or its values do not fit ``dtype``.

    Runs beside a serving loop, so it computes in numpy on one thread: torch would start a team of
    threads for each thread that loads, and they would fight the forward pass for its cores.
    """
    manifest = source if isinstance(source, AdapterManifest) else AdapterManifest.read(source)
    problems = shape_problems(manifest.modules.values(), base)
    if problems:
        raise AdapterInvalid(problems)
    factors: dict[tuple[int, str], Factor] = {}
    broken: list[str] = []
    with TensorFile.open(manifest.directory / WEIGHTS_FILE) as file:
        for site, module in manifest.modules.items():
            a = _packed(file, module.a, dtype, scale=1.0)
            b = _packed(file, module.b, dtype, scale=module.scale)
            if a is None or b is None:
                broken.append(site.name)
            else:
                factors[site.layer, site.module] = Factor(a, b)
    if broken:
        raise AdapterInvalid([f"values that are not finite in {dtype}: {listed(broken)}"])
    return PackedAdapter(manifest.digest, manifest.rank, factors)


def _packed(
    file: TensorFile, tensor: TensorInfo, dtype: torch.dtype, *, scale: float
) -> Tensor | None:
    """The tensor times ``scale``, or None if any element is not finite in ``dtype``."""
    data, wanted = file.read(tensor), STORED_AS[dtype]
    if tensor.dtype == wanted and scale == 1.0:
        bits = as_bits(data, wanted)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            values = as_float32(data, tensor.dtype) * np.float32(scale)
        if not np.isfinite(values).all():
            return None
        bits = as_dtype(values, wanted)
    if not is_finite(bits, wanted):
        return None
    return torch.from_numpy(bits).view(dtype).view(tensor.shape)
