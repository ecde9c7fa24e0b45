"""An adapter as tensors of the compute dtype, per module, with the scale folded into B."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid
from adapters.keys import Site
from adapters.manifest import WEIGHTS_FILE, AdapterManifest, ModuleLora, listed
from adapters.tensor_file import TensorFile, TensorInfo
from adapters.validate import shape_problems

TORCH_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


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
    """Raises AdapterInvalid when it does not fit the base or its values do not fit ``dtype``."""
    manifest = source if isinstance(source, AdapterManifest) else AdapterManifest.read(source)
    problems = shape_problems(manifest.modules.values(), base)
    if problems:
        raise AdapterInvalid(problems)
    factors: dict[Site, Factor] = {}
    with TensorFile.open(manifest.directory / WEIGHTS_FILE) as file:
        for site, module in manifest.modules.items():
            factors[site] = _factor(file, module, dtype)
    broken = [site.name for site, factor in factors.items() if not _finite(factor)]
    if broken:
        raise AdapterInvalid([f"values that are not finite in {dtype}: {listed(broken)}"])
    by_module = {(site.layer, site.module): factor for site, factor in factors.items()}
    return PackedAdapter(manifest.digest, manifest.rank, by_module)


def _factor(file: TensorFile, module: ModuleLora, dtype: torch.dtype) -> Factor:
    a = _tensor(file, module.a).to(dtype)
    b = (_tensor(file, module.b).float() * module.scale).to(dtype)
    return Factor(a, b)


def _tensor(file: TensorFile, info: TensorInfo) -> Tensor:
    data = torch.frombuffer(file.read(info), dtype=TORCH_DTYPES[info.dtype])
    return data.view(info.shape)


def _finite(factor: Factor) -> bool:
    return bool(factor.a.isfinite().all() and factor.b.isfinite().all())
