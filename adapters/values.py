"""Numbers in tensor bytes, including bfloat16, which numpy lacks."""

import numpy as np
import numpy.typing as npt

from adapters.errors import AdapterInvalid
from adapters.tensor_file import TensorFile, TensorInfo

SERVED = ("F16", "BF16", "F32")
_EXPONENT = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F800000),
}


def as_float32(data: bytes | bytearray, dtype: str) -> npt.NDArray[np.float32]:
    """``data`` holds whole little-endian elements of one of SERVED."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F16", "F32"):
        return np.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype(np.float32)
    raise AdapterInvalid([f"dtype {dtype}; only {', '.join(SERVED)} hold weights"])


def largest(file: TensorFile, tensor: TensorInfo) -> float:
    """The largest magnitude of a tensor of a dtype in SERVED; infinite if any is NaN or Inf."""
    word, exponent = _EXPONENT[tensor.dtype]
    peak = 0.0
    for chunk in file.chunks(tensor):
        bits = np.frombuffer(chunk, word)
        if ((bits & exponent) == exponent).any():
            return float("inf")
        peak = max(peak, float(np.abs(as_float32(chunk, tensor.dtype)).max()))
    return peak
