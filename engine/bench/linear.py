"""The 4-bit linears of one layer, each as the engine calls it, over weights read from memory.

``kernels.matmul_w4a16`` as a whole: choice of tile, product, sum of its parts. As many copies of
a weight as exceed the L2 are multiplied in turn.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.bench.alone import BenchmarkRefused
from engine.bench.floor import linear_floor
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row
from engine.bench.shapes import Shape
from engine.bench.timing import (
    COLD_BYTES,
    compute_device,
    compute_dtype,
    microseconds,
    require_close,
)
from kernels.matmul_w4a16 import W4Weight, dequantize_w4, matmul_w4a16, pack_w4

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
    """Raises BenchmarkRefused when a product is wrong, or the format is not one of 4 bits."""
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
    weight = random_weight(size, act_order=setting.format == "gptq-act-order")
    weights = [weight, *(_copy(weight) for _ in range(cold_bytes // weight.nbytes + 1))]
    dense = dequantize_w4(weight, dtype=torch.float32)
    found = []
    for batch in rows:
        x = _normal(batch, size[0], seed=batch)
        require_close(f"{name}, {batch} rows", matmul_w4a16(x, weight), x.float() @ dense)
        time = microseconds(lambda i, x=x: matmul_w4a16(x, weights[i]), len(weights))  # type: ignore[misc]
        floor = None
        if setting.device is not None:
            floor = linear_floor(*size, batch, setting.device, setting.precision) * 1e6
        figure = Figure(
            bench="linear", op=name, metric="time", value=time, unit="us", batch=batch, floor=floor
        )
        found.append(row(setting, figure))
    return found


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


def _copy(weight: W4Weight) -> W4Weight:
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
