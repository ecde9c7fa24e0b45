"""Numbers in tensor bytes, including bfloat16, which numpy lacks."""

import numpy as np
import numpy.typing as npt

from adapters.errors import AdapterInvalid
from adapters.tensor_file import TensorFile, TensorInfo

SERVED = ("F16", "BF16", "F32")
Float32 = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
_EXPONENT = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000}


def as_float32(data: bytes | bytearray, dtype: str) -> Float32:
    """``data`` holds whole little-endian elements of one of SERVED."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F16", "F32"):
        return np.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype(np.float32)
    raise AdapterInvalid([f"dtype {dtype}; only {', '.join(SERVED)} hold weights"])


def as_dtype(values: Float32, dtype: str) -> Bits:
    """The bits of finite values in one of SERVED, rounded to nearest even; too large gives Inf."""
    if dtype == "BF16":
        bits = values.view(np.uint32)
        rounded = bits >> 16  # in place from here: memory for each step would cost more than it
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        return rounded.astype(np.uint16)
    if dtype == "F32":
        return values.view(np.uint32)
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16)


def is_finite(bits: Bits, dtype: str) -> bool:
    """No element of one of SERVED is NaN or infinite."""
    magnitude = bits.dtype.type((1 << 8 * bits.itemsize - 1) - 1)
    return int((bits & magnitude).max(initial=0)) < _EXPONENT[dtype]


def largest(file: TensorFile, tensor: TensorInfo) -> float:
    """The largest magnitude of a tensor of a dtype in SERVED; infinite if any is NaN or Inf."""
    peak = 0.0
    for chunk in file.chunks(tensor):
        if not is_finite(as_bits(chunk, tensor.dtype), tensor.dtype):
            return float("inf")
        peak = max(peak, float(np.abs(as_float32(chunk, tensor.dtype)).max()))
    return peak


def as_bits(data: bytes | bytearray, dtype: str) -> Bits:
    """The elements of one of SERVED as unsigned integers of their size, not copied."""
    return np.frombuffer(data, "<u4" if dtype == "F32" else "<u2")
