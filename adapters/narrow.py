"""An adapter's matrices in 8 bits: each row codes of a byte, relative to its largest value.

    value = code * (largest / LARGEST)    LARGEST: 127 of int8, 448 of e4m3

The rows of A belong to ranks, those of B to outputs. A row's largest value is one of its own, so
the type they came in holds it exactly, and a row depends on itself alone. Rounded to nearest, ties
to even. Biases, magnitudes of DoRA, embeddings and heads stay as they are.

In numpy on one thread, as ``pack`` is, and for the same reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adapters.pack import Factor, PackedAdapter
from adapters.values import Float32

_SMALLEST = np.float32(2.0**-100)  # a row of smaller values is zeros
_SMALLEST_NORMAL = np.float32(2.0**-6)  # of e4m3
_MULTIPLES = np.float32(2.0**14)  # added to a smaller number, it leaves multiples of 2^-9


class Narrow(StrEnum):
    INT8 = "int8"
    E4M3 = "e4m3"

    @property
    def largest(self) -> float:
        """The code of a row's largest value."""
        return 127.0 if self is Narrow.INT8 else 448.0


def narrowed(packed: PackedAdapter, kind: Narrow) -> PackedAdapter:
    """Its A and B of linear layers as codes."""
    factors = {site: _narrowed(factor, kind) for site, factor in packed.factors.items()}
    return replace(packed, factors=factors)


def rounded(packed: PackedAdapter, kind: Narrow) -> PackedAdapter:
    """What remains of an adapter whose A and B are kept as codes, in float32."""
    factors = narrowed(packed, kind).factors
    return replace(packed, factors={site: widened(factor) for site, factor in factors.items()})


def widened(factor: Factor) -> Factor:
    """The float32 matrices that codes stand for; a factor without codes is returned as it is."""
    if factor.a_largest is None or factor.b_largest is None:
        return factor
    return replace(
        factor,
        a=_decoded(factor.a, factor.a_largest),
        b=_decoded(factor.b, factor.b_largest),
        a_largest=None,
        b_largest=None,
    )


def kind_of(codes: Tensor) -> Narrow:
    """Bytes that are no integers are e4m3."""
    return Narrow.INT8 if codes.dtype == torch.int8 else Narrow.E4M3


def _narrowed(factor: Factor, kind: Narrow) -> Factor:
    a, a_largest = _coded(factor.a, kind)
    b, b_largest = _coded(factor.b, kind)
    return replace(factor, a=a, b=b, a_largest=a_largest, b_largest=b_largest)


def _coded(matrix: Tensor, kind: Narrow) -> tuple[Tensor, Tensor]:
    """Codes int8 or uint8 [rows, width], and the largest of each row, in the matrix's own type."""
    values = _as_float32(matrix)
    largest = np.maximum(values.max(axis=1, initial=0.0), -values.min(axis=1, initial=0.0))
    scaled = values * (np.float32(kind.largest) / np.maximum(largest, _SMALLEST))[:, None]
    codes = _ENCODERS[kind](scaled)
    return torch.from_numpy(codes), torch.from_numpy(largest).to(matrix.dtype)


def _as_float32(matrix: Tensor) -> Float32:
    """numpy has no bfloat16. Not to be written to."""
    if matrix.dtype == torch.float32:
        return np.ascontiguousarray(matrix.numpy())
    if matrix.dtype == torch.float16:
        return np.ascontiguousarray(matrix.numpy(), dtype=np.float32)
    bits = matrix.contiguous().view(torch.int16).numpy().view(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _integers(scaled: Float32) -> npt.NDArray[np.int8]:
    return np.rint(scaled, out=scaled).astype(np.int8)


def _e4m3(scaled: Float32) -> npt.NDArray[np.uint8]:
    """Of values up to 448."""
    signs = (scaled.view(np.uint32) >> 24).astype(np.uint8) & 0x80
    sizes = np.abs(scaled, out=scaled)
    bits = sizes.view(np.int32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    few = (sizes + _MULTIPLES).view(np.int32) - int(_MULTIPLES.view(np.int32))
    codes = np.where(sizes < _SMALLEST_NORMAL, few, normal).astype(np.uint8)
    codes |= signs
    return codes


_ENCODERS: Mapping[Narrow, Callable[[Float32], npt.NDArray[np.int8] | npt.NDArray[np.uint8]]] = {
    Narrow.INT8: _integers,
    Narrow.E4M3: _e4m3,
}


def _decoded(codes: Tensor, largest: Tensor) -> Tensor:
    kind = kind_of(codes)
    exact = codes if kind is Narrow.INT8 else codes.view(torch.float8_e4m3fn)
    return exact.float() * (largest.float() * (1 / kind.largest)).unsqueeze(1)
