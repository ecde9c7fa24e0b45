"""Random packed adapters, without files."""

from collections.abc import Iterable

import torch

from adapters.pack import Factor, PackedAdapter
from engine.adapter_table import site_shapes
from engine.models.spec import ModelSpec
from engine.placement import SITES

MODULES = tuple(module for modules in SITES.values() for module in modules)


def random_adapter(
    spec: ModelSpec,
    rank: int,
    *,
    seed: int = 0,
    modules: Iterable[str] = MODULES,
    layers: Iterable[int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> PackedAdapter:
    random = torch.Generator().manual_seed(seed)
    sizes = {
        module: (shape.width, outputs)
        for site, shape in site_shapes(spec).items()
        for module, outputs in zip(SITES[site], shape.slices, strict=True)
    }
    factors = {}
    for layer in range(spec.num_layers) if layers is None else layers:
        for module in modules:
            K, N = sizes[module]
            a = torch.randn(rank, K, generator=random) * K**-0.5
            b = torch.randn(N, rank, generator=random) * 0.3 * rank**-0.5
            factors[layer, module] = Factor(a.to(dtype), b.to(dtype))
    return PackedAdapter(f"digest-{seed}", rank, factors)
