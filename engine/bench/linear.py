"""The quantised linears of one layer, each as the engine calls it, over weights read from memory.

``kernels.matmul_w4a16`` or ``matmul_w8a16`` as a whole: choice of tile, product, sum of its parts;
and without the sum, which is how a model calls them: whoever reads the parts adds them up. As many
copies of a weight as exceed the L2 are multiplied in turn.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.bench.alone import BenchmarkRefused
from engine.bench.floor import linear_floor
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row
from engine.bench.shapes import EIGHT_BITS, Shape
from engine.bench.timing import (
    COLD_BYTES,
    compute_device,
    compute_dtype,
    microseconds,
    require_close,
)
from kernels.matmul_w4a16 import (
    W4Weight,
    dequantize_w4,
    matmul_w4a16,
    matmul_w4a16_parts,
    pack_w4,
)
from kernels.matmul_w8a16 import matmul_w8a16, matmul_w8a16_parts
from kernels.w8_weight import W8Weight, dequantize_w8

ROWS = (1, 8, 16, 32, 64, 128, 256, 1024)
GROUP = 128


def linears(shape: Shape) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of a layer's linears as served, fused, by the name peers give them."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q = shape.num_attention_heads * shape.head_dim
    kv = shape.num_key_value_heads * shape.head_dim
    return {
        "qkv_proj": (hidden, q + 2 * kv),
        "o_proj": (q, hidden),
        "gate_up_proj": (hidden, 2 * inner),
        "down_proj": (inner, hidden),
    }


def linear_rows(
    setting: Setting, rows: Sequence[int] = ROWS, *, cold_bytes: int | None = None
) -> list[Row]:
    """Raises BenchmarkRefused when a product is wrong, or the format is not quantised."""
    if cold_bytes is None:  # a CPU is not measured here, only shown to be right
        cold_bytes = COLD_BYTES if compute_device().type == "cuda" else 0
    if setting.format == "fp16":
        raise BenchmarkRefused("the linears of an fp16 model are torch's own")
    return [
        each
        for name, size in linears(setting.shape).items()
        for each in _one_linear(setting, name, size, rows, cold_bytes)
    ]


def _one_linear(
    setting: Setting, name: str, size: tuple[int, int], rows: Sequence[int], cold_bytes: int
) -> list[Row]:
    weight = _weight(setting.format, size)
    weights = [weight, *(_copy(weight) for _ in range(cold_bytes // weight.nbytes + 1))]
    dense = _dense(weight)
    found = []
    for batch in rows:
        x = _normal(batch, size[0], seed=batch)
        require_close(f"{name}, {batch} rows", _product(x, weight), x.float() @ dense)
        floor = None
        if setting.device is not None:
            floor = linear_floor(*size, batch, setting.device, setting.precision) * 1e6
        figure = Figure(
            bench="linear", op=name, metric="", value=0, unit="us", batch=batch, floor=floor
        )
        for metric, function in (("time", _product), ("time, parts not summed", _parts)):
            time = microseconds(lambda i, x=x, f=function: f(x, weights[i]), len(weights))  # type: ignore[misc]
            found.append(row(setting, replace(figure, metric=metric, value=time)))
    return found


def _weight(fmt: str, size: tuple[int, int]) -> W4Weight | W8Weight:
    if fmt in EIGHT_BITS:
        return random_bytes(size, fmt)
    return random_weight(size, act_order=fmt == "gptq-act-order")


def _product(x: torch.Tensor, weight: W4Weight | W8Weight) -> torch.Tensor:
    return matmul_w4a16(x, weight) if isinstance(weight, W4Weight) else matmul_w8a16(x, weight)


def _parts(x: torch.Tensor, weight: W4Weight | W8Weight) -> torch.Tensor:
    if isinstance(weight, W4Weight):
        return matmul_w4a16_parts(x, weight)
    return matmul_w8a16_parts(x, weight)


def _dense(weight: W4Weight | W8Weight) -> torch.Tensor:
    """[K, N] float32."""
    if isinstance(weight, W4Weight):
        return dequantize_w4(weight, dtype=torch.float32)
    return dequantize_w8(weight, dtype=torch.float32).t()


def random_bytes(size: tuple[int, int], fmt: str) -> W8Weight:
    device = compute_device()
    inputs, outputs = size
    draw = torch.Generator(device=device).manual_seed(inputs + outputs)
    values = torch.randn(outputs, inputs, generator=draw, device=device) * 40
    group = GROUP if fmt == "fp8-block" else inputs
    spread = torch.rand(-(-inputs // group), outputs, generator=draw, device=device)
    return W8Weight(
        values=values.clamp_(-127, 127).to(torch.int8 if fmt == "int8" else torch.float8_e4m3fn),
        scales=(spread * 0.5 + 0.75) * (inputs**-0.5 / 40),
        group=group,
    )


def random_weight(size: tuple[int, int], *, act_order: bool) -> W4Weight:
    """Scales as a real layer has them, so that results neither vanish nor overflow."""
    device = compute_device()
    inputs, outputs = size
    draw = torch.Generator(device=device).manual_seed(inputs + outputs)
    groups = -(-inputs // GROUP)
    codes = torch.randint(0, 16, size, generator=draw, device=device, dtype=torch.uint8)
    zeros = torch.randint(6, 10, (groups, outputs), generator=draw, device=device)
    spread = torch.rand(groups, outputs, generator=draw, device=device)
    scales = ((spread * 0.5 + 0.75) * (0.22 / inputs**0.5)).to(compute_dtype(device))
    order = torch.randperm(inputs, generator=draw, device=device) if act_order else None
    return pack_w4(codes, scales, zeros, group=GROUP, perm=order)


def _copy(weight: W4Weight | W8Weight) -> W4Weight | W8Weight:
    if isinstance(weight, W8Weight):
        return replace(weight, values=weight.values.clone(), scales=weight.scales.clone())
    return replace(
        weight,
        words=weight.words.clone(),
        scales=weight.scales.clone(),
        zeros=None if weight.zeros is None else weight.zeros.clone(),
        meta=None if weight.meta is None else weight.meta.clone(),
    )


def _normal(*size: int, seed: int) -> torch.Tensor:
    device = compute_device()
    draw = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(*size, generator=draw, device=device).to(compute_dtype(device))
