"""Where and in what number format the model computes, and why.

On CUDA the checkpoint's own 16-bit type. On CPU whichever of bfloat16 and float32 is faster for
this model on this machine, found by timing: with bfloat16 instructions the first wins by far,
without them it is emulated and loses as clearly.
"""

import time
from dataclasses import dataclass

import torch

from engine.config import Device, Dtype
from engine.errors import ConfigError
from engine.layers.linear import Dense, Linear, Prepacked
from engine.models.spec import ModelSpec

TORCH = {
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.FLOAT32: torch.float32,
}
PROBE_ROWS = 8  # a small decode batch
PROBE_ROUNDS = 5
PROBE_ELEMENTS = 1 << 23  # of the weight that is timed: larger than a cache, quick all the same


@dataclass(frozen=True, slots=True)
class Choice:
    dtype: torch.dtype
    reason: str


def choose_device(device: Device) -> torch.device:
    """Raises ConfigError for a device this machine does not have."""
    cuda = torch.cuda.is_available()
    if device == Device.CUDA and not cuda:
        raise ConfigError("device=cuda, but torch finds no CUDA device; use auto or cpu")
    return torch.device("cuda" if cuda and device != Device.CPU else "cpu")


def choose_dtype(dtype: Dtype, spec: ModelSpec, device: torch.device) -> Choice:
    """Raises ConfigError for a type the device cannot serve."""
    if device.type == "cpu" and dtype == Dtype.FLOAT16:
        raise ConfigError("dtype=float16 is for CUDA; on CPU use auto, bfloat16 or float32")
    if device.type == "cuda" and dtype == Dtype.FLOAT32:
        raise ConfigError("dtype=float32 is for CPU; on CUDA use auto, bfloat16 or float16")
    if dtype != Dtype.AUTO:
        return Choice(TORCH[dtype], "as configured")
    if device.type == "cuda":
        saved = torch.bfloat16 if spec.dtype == "bfloat16" else torch.float16
        return Choice(saved, f"the checkpoint is {spec.dtype}")
    return _faster_on_cpu(spec)


def _faster_on_cpu(spec: ModelSpec) -> Choice:
    K = spec.hidden_size
    N = min(2 * spec.intermediate_size, max(64, PROBE_ELEMENTS // K))
    weight = torch.randn(N, K)
    half, wide = (
        _seconds((Prepacked if Prepacked.usable(dtype) else Dense)(weight.to(dtype)))
        for dtype in (torch.bfloat16, torch.float32)
    )
    best = torch.bfloat16 if half < wide else torch.float32
    return Choice(
        best,
        f"{K}x{N} times {PROBE_ROWS} rows: {half * 1e6:.0f} us in bfloat16, "
        f"{wide * 1e6:.0f} us in float32",
    )


def _seconds(linear: Linear) -> float:
    """The quickest of a few calls."""
    x = torch.randn(PROBE_ROWS, linear.size[0]).to(linear.dtype)
    quickest = float("inf")
    for _ in range(PROBE_ROUNDS):
        begin = time.perf_counter()
        linear(x)
        quickest = min(quickest, time.perf_counter() - begin)
    return quickest
