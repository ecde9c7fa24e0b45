"""GPTQ: round a weight matrix to 4 bits one input at a time, and let the inputs still to come
absorb the error that the layer's real activations would see.

Letters: K inputs, N outputs, T calibration tokens, G = K / group.

    weight   [N, K]  float32, as ``torch.nn.Linear`` holds it
    hessian  [K, K]  float32, X^T X / T over the calibration inputs X [T, K]

Each group of ``group`` inputs shares one scale and one integer zero per output. Inputs are
visited in order of falling activation energy ("act-order") and groups are formed in that
order, so the most important inputs are rounded first and lie in groups of their own kind;
``group_of`` records which group each input fell into.

The packed form is AutoGPTQ's first layout (``checkpoint_format: gptq``), which stores each
zero minus one. A zero of 0 would wrap there, and readers disagree about it: zeros are 1..15.

Source of the method: Frantar et al., "GPTQ", arXiv:2210.17323.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

BITS = 4
LEVELS = 2**BITS - 1  # the largest code
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)  # share of a group's range that the codes span


@dataclass(frozen=True, slots=True)
class Quantised:
    """``weight[n, k] ~ (codes[k, n] - zeros[g, n]) * scales[g, n]`` with ``g = group_of[k]``."""

    codes: torch.Tensor  # uint8 [K, N]
    scales: torch.Tensor  # float16 [G, N]
    zeros: torch.Tensor  # uint8 [G, N], 1..15
    group_of: torch.Tensor  # int32 [K]

    def dequantise(self) -> torch.Tensor:
        """[N, K] float32."""
        scale, zero = self.scales.float()[self.group_of], self.zeros.float()[self.group_of]
        return ((self.codes.float() - zero) * scale).t().contiguous()

    def split(self, sizes: list[int]) -> "list[Quantised]":
        """The same, cut along N: modules that were fused because they share their input."""
        columns = (
            torch.split(tensor, sizes, dim=1) for tensor in (self.codes, self.scales, self.zeros)
        )
        return [Quantised(c, s, z, self.group_of) for c, s, z in zip(*columns, strict=True)]


def quantise(
    weight: torch.Tensor, hessian: torch.Tensor, *, group: int, damping: float = 0.01
) -> Quantised:
    """Round ``weight`` against ``hessian``. ``group`` must divide K."""
    N, K = weight.shape
    assert K % group == 0, f"group {group} does not divide K={K}"
    order = hessian.diagonal().argsort(descending=True, stable=True)
    correction = _correction(hessian[order][:, order], damping)  # [K, K] upper triangular
    w = weight.t()[order].contiguous()  # [K, N], rows are consumed from the top
    codes = torch.empty((K, N), dtype=torch.uint8)
    scales = torch.empty((K // group, N), dtype=torch.float16)
    zeros = torch.empty((K // group, N), dtype=torch.uint8)
    with _one_thread():
        for g in range(K // group):
            start, stop = g * group, (g + 1) * group
            rows = w[start:stop]
            scales[g], zeros[g] = _grid(rows)
            codes[start:stop], errors = _round_group(
                rows, scales[g].float(), zeros[g].float(), correction[start:stop, start:stop]
            )
            w[stop:].addmm_(correction[start:stop, stop:].t(), errors, alpha=-1.0)
    position = order.argsort()
    return Quantised(codes[position], scales, zeros, (position // group).to(torch.int32))


def _round_group(
    w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, correction: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8) and errors of one group's rows [group, N]; ``w`` is consumed.

    Each row's error, in units of its own correction, moves the rows below it at once; what
    lies beyond the group is for the caller to move, by one product with all errors.
    """
    codes = torch.empty_like(w, dtype=torch.uint8)
    errors = torch.empty_like(w)
    for i, row in enumerate(w):
        code = torch.div(row, scale).round_().add_(zero).clamp_(0, LEVELS)
        codes[i] = code
        torch.sub(row, code.sub_(zero).mul_(scale), out=errors[i])
        errors[i] /= correction[i, i]
        w[i + 1 :].addr_(correction[i, i + 1 :], errors[i], alpha=-1.0)
    return codes, errors


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small operations in a row: two threads that meet after each of them lose more time
    waiting for one another than they save, and on a busy machine ten times as much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _correction(hessian: torch.Tensor, damping: float) -> torch.Tensor:
    """Upper Cholesky factor of the damped inverse: row i says how to spread error i."""
    h = hessian.double()
    h.diagonal().add_(damping * h.diagonal().mean().clamp_min(1e-12))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    factor: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


def _grid(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale (float16) and zero (uint8) per output for one group [group, N], least squares."""
    low, high = w.amin(0).clamp_max(0), w.amax(0).clamp_min(0)
    least, scale, zero = torch.full_like(low, torch.inf), torch.empty_like(low), low
    for shrink in _SHRINKS:
        s = ((high - low) * shrink / LEVELS).half().float().clamp_min(2.0**-24)
        z = torch.round(-low * shrink / s).clamp_(1, LEVELS)
        code = torch.div(w, s).round_().add_(z).clamp_(0, LEVELS)
        loss = code.sub_(z).mul_(s).sub_(w).square_().sum(0)
        better = loss < least
        scale, zero = torch.where(better, s, scale), torch.where(better, z, zero)
        least = torch.where(better, loss, least)
    return scale.half(), zero.to(torch.uint8)


def pack(quantised: Quantised) -> dict[str, torch.Tensor]:
    """The four tensors of one module in AutoGPTQ's first layout.

    qweight int32 [K/8, N], eight consecutive inputs a word, lowest nibble first;
    qzeros int32 [G, N/8], eight consecutive outputs a word, each stored minus one;
    scales float16 [G, N]; g_idx int32 [K].
    """
    return {
        "qweight": _nibbles_to_words(quantised.codes),
        "qzeros": _nibbles_to_words((quantised.zeros - 1).t()).t().contiguous(),
        "scales": quantised.scales.contiguous(),
        "g_idx": quantised.group_of.clone(),  # safetensors refuses tensors that share memory
    }


def unpack(tensors: Mapping[str, torch.Tensor]) -> Quantised:
    """The inverse of ``pack``."""
    return Quantised(
        codes=_words_to_nibbles(tensors["qweight"]),
        scales=tensors["scales"],
        zeros=_words_to_nibbles(tensors["qzeros"].t()).t() + 1,
        group_of=tensors["g_idx"],
    )


def _nibbles_to_words(nibbles: torch.Tensor) -> torch.Tensor:
    """uint8 [8 R, C] with values 0..15 -> int32 [R, C], row 8r+i in bits 4i..4i+3."""
    rows, columns = nibbles.shape
    assert rows % 8 == 0, f"{rows} rows do not fill whole 32-bit words"
    pairs = nibbles.reshape(rows // 8, 4, 2, columns)
    octets = pairs[:, :, 0] | (pairs[:, :, 1] << 4)  # [R, 4, C] uint8, little endian
    words: torch.Tensor = octets.transpose(1, 2).contiguous().view(torch.int32)
    return words[..., 0]


def _words_to_nibbles(words: torch.Tensor) -> torch.Tensor:
    """int32 [R, C] -> uint8 [8 R, C]."""
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)[:, None]
    nibbles: torch.Tensor = (words[:, None] >> shifts) & LEVELS  # [R, 8, C]
    return nibbles.flatten(0, 1).to(torch.uint8)
