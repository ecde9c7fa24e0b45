"""The layers that every packer is asked to pack, and the file that keeps what it made of them.

Runs in the packers' own environments: it imports torch and safetensors, and nothing of the
project. K is the number of inputs, N of outputs, G of groups.
"""

import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

Tensors = Mapping[str, torch.Tensor]
LARGE = 16_384  # weights: of a larger layer no fixture is committed
DENSE = 8  # outputs of which a fixture keeps the dense weight


@dataclass(frozen=True)
class Case:
    inputs: int
    outputs: int
    bits: int = 4
    group: int = 32  # -1: all rows
    symmetric: bool = False
    act_order: bool = False
    zeros: tuple[int, int] | None = None  # drawn from this range; None: fitted to the weights
    scales: str = "float16"
    variant: str = ""  # the packer's own name for a way to pack

    @property
    def name(self) -> str:
        parts = [
            self.variant,
            f"{self.bits}bit",
            f"{self.inputs}x{self.outputs}",
            "channel" if self.group == -1 else f"g{self.group}",
            "sym" if self.symmetric else "asym",
            "act" if self.act_order else "",
            "zeros{}to{}".format(*self.zeros) if self.zeros else "",
            self.scales.removeprefix("float16"),
        ]
        return "-".join(part for part in parts if part)

    @property
    def rows(self) -> int:
        """Of a group."""
        return self.inputs if self.group == -1 else self.group


@dataclass(frozen=True)
class Layer:
    """``weight[n, k] = (codes[k, n] - zeros[g, n]) * scales[g, n]`` with ``g = g_idx[k]``."""

    case: Case
    codes: torch.Tensor  # uint8 [K, N]
    zeros: torch.Tensor  # int16 [G, N]
    scales: torch.Tensor  # [G, N]
    g_idx: torch.Tensor  # int32 [K]

    @property
    def weight(self) -> torch.Tensor:
        """float32 [N, K]."""
        g = self.g_idx.long()
        return ((self.codes - self.zeros[g]) * self.scales.float()[g]).t().contiguous()

    @property
    def linear(self) -> torch.nn.Linear:
        """In half precision, as models are quantised."""
        linear = torch.nn.Linear(self.case.inputs, self.case.outputs, bias=False)
        linear.weight.data = self.weight.to(self.scales.dtype)
        return linear.requires_grad_(False)


@dataclass(frozen=True)
class Packed:
    """What a packer made of a layer."""

    tensors: Tensors
    config: Mapping[str, Any]  # as it would write it beside them
    dense: torch.Tensor  # [N, K], by its own dequantisation; read from a fixture: [DENSE, K]


@dataclass(frozen=True)
class Fixture:
    case: Case
    versions: Mapping[str, str]
    packed: Packed
    codes: torch.Tensor  # uint8 [K, N]
    zeros: torch.Tensor  # int16 [G, N]

    @classmethod
    def read(cls, file: Path) -> "Fixture":
        with safe_open(str(file), framework="pt") as opened:
            facts = json.loads(opened.metadata()["fixture"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        case = facts["case"] | {"zeros": facts["case"]["zeros"] and tuple(facts["case"]["zeros"])}
        stored = {
            name.removeprefix("packed."): tensor
            for name, tensor in tensors.items()
            if name.startswith("packed.")
        }
        return cls(
            case=Case(**case),
            versions=facts["versions"],
            packed=Packed(stored, facts["config"], tensors["dense"]),
            codes=tensors["codes"],
            zeros=tensors["zeros"],
        )

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "case": asdict(self.case),
            "versions": self.versions,
            "config": self.packed.config,
        }
        tensors = {f"packed.{name}": tensor for name, tensor in self.packed.tensors.items()}
        tensors |= {"codes": self.codes, "zeros": self.zeros, "dense": self.packed.dense[:DENSE]}
        # One key of metadata: several are written in no particular order.
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            file,
            metadata={"fixture": json.dumps(facts, sort_keys=True)},
        )


def make_layer(case: Case) -> Layer:
    random = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    K, N = case.inputs, case.outputs
    levels = 2**case.bits - 1
    groups = -(-K // case.rows)
    g_idx = torch.arange(K) // case.rows
    if case.act_order:
        g_idx = g_idx[torch.randperm(K, generator=random)]
    w = torch.randn(K, N, generator=random) * K**-0.5
    low, high = _bounds(w, g_idx, groups)
    if case.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / levels).to(getattr(torch, case.scales))
    zeros = torch.round(-low / scales.float()).clamp(0, levels)
    if case.symmetric:
        zeros = torch.full_like(zeros, (levels + 1) // 2)
    if case.zeros:
        zeros = torch.randint(case.zeros[0], case.zeros[1] + 1, (groups, N), generator=random)
    codes = torch.round(w / scales.float()[g_idx] + zeros[g_idx]).clamp(0, levels)
    return Layer(case, codes.to(torch.uint8), zeros.to(torch.int16), scales, g_idx.int())


def _bounds(w: torch.Tensor, g_idx: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest weight of each group, [G, N] each, zero always between them."""
    parts = [w[g_idx == g] for g in range(groups)]
    low = torch.stack([part.amin(0) for part in parts]).clamp_max(0)
    return low, torch.stack([part.amax(0) for part in parts]).clamp_min(0)


def run(
    packer: str,
    packages: Sequence[str],
    cases: Sequence[Case],
    pack: Callable[[Layer], Packed],
) -> None:
    """Write a fixture per case below the directory that the command line names.

    Small ones go to ``<packer>/``, large ones to ``large/<packer>/``.
    """
    out = Path(sys.argv[1])
    versions = {name: version(name).partition("+")[0] for name in ("torch", *packages)}
    for case in cases:
        layer = make_layer(case)
        with torch.inference_mode():
            fixture = Fixture(case, versions, pack(layer), layer.codes, layer.zeros)
            large = case.inputs * case.outputs > LARGE
            fixture.write(out / ("large" if large else "") / packer / f"{case.name}.safetensors")
    sys.stdout.write(f"{packer}: {len(cases)} layers, {versions}\n")
