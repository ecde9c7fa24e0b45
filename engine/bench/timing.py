"""How long one operation takes: in a CUDA graph on a GPU, by the clock on a CPU."""

import statistics
import time
from collections.abc import Callable

import torch

from engine.bench.alone import BenchmarkRefused
from kernels.w4_tune import graph_microseconds

TOLERANCE = 4e-3  # of a result's norm; float16 rounds each value to 5e-4 of itself
COLD_BYTES = 300_000_000  # several times the L2: what is read in turn is read from memory
ROUNDS = 5


def compute_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_dtype(device: torch.device) -> torch.dtype:
    return torch.float16 if device.type == "cuda" else torch.float32


def microseconds(call: Callable[[int], object], copies: int) -> float:
    """Median time of ``call(i)`` for i in turn over ``copies`` copies of what it reads."""
    for i in range(copies):  # compiles whatever differs between copies, before a capture
        call(i)
    if torch.cuda.is_available():
        return graph_microseconds(call, copies)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for i in range(copies):
            call(i)
        times.append((time.perf_counter() - start) / copies * 1e6)
    return statistics.median(times)


def require_close(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Raises BenchmarkRefused unless ``got`` differs from ``want`` by little of its norm."""
    norm = float(want.double().norm())
    off = float((got.double() - want.double()).norm()) / max(norm, 1e-30)
    if not off <= TOLERANCE:  # a NaN is not close either
        raise BenchmarkRefused(f"{what}: off by {off:.2g} of the result's norm")
