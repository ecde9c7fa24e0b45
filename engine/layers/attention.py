"""Attention over the page pool: rotate, write K and V, then read back through the page tables.

Rows with one token (decode) and chunks of several (prefill) may be mixed in any order; each kind
has its kernel, and both write their own rows of one output.
"""

from dataclasses import dataclass

import torch

from engine.batch import StepInputs
from engine.models.spec import ModelSpec
from kernels.kv_write import kv_write
from kernels.paged_decode import paged_decode
from kernels.ragged_prefill import ragged_prefill
from kernels.rms_norm import rms_norm
from kernels.rope import rope


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """RMS norms over each head of q and of k, taken before the rotation."""

    q: torch.Tensor  # float32 [D]
    k: torch.Tensor
    eps: float

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """New tensors [T, QH, D] and [T, KVH, D]."""
        return self._norm(q, self.q), self._norm(k, self.k)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.reshape(-1, x.shape[2]), weight, self.eps).view(x.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's attention between its linears."""

    spec: ModelSpec
    cos_sin: torch.Tensor  # float32 [positions, D]; one for all layers
    window: int = 0  # tokens a token sees, itself included; 0: all before it
    norms: HeadNorms | None = None
    deterministic: bool = False

    def __call__(self, qkv: torch.Tensor, kv: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        """[T, (QH + 2 KVH) * D] to [T, QH * D]; writes this pass's K and V into the layer's kv."""
        spec, T = self.spec, qkv.shape[0]
        heads = qkv.view(T, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        q, k, v = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if self.norms is not None:
            q, k = self.norms(q, k)
        rope(q, k, inputs.positions, self.cos_sin)
        kv_write(k, v, kv, inputs.slots)
        out = torch.empty((T, spec.num_heads, spec.head_dim), dtype=q.dtype, device=q.device)
        self._decode(q, kv, inputs, out)
        self._prefill(q, kv, inputs, out)
        return out.view(T, spec.query_size)

    def _decode(
        self, q: torch.Tensor, kv: torch.Tensor, inputs: StepInputs, out: torch.Tensor
    ) -> None:
        if (decode := inputs.decode) is not None:
            paged_decode(
                q,
                kv,
                decode.page_table,
                decode.context_lens,
                rows=decode.rows,
                scale=self.spec.head_dim**-0.5,
                out=out,
                window=self.window,
                deterministic=self.deterministic,
            )

    def _prefill(
        self, q: torch.Tensor, kv: torch.Tensor, inputs: StepInputs, out: torch.Tensor
    ) -> None:
        if (prefill := inputs.prefill) is not None:
            ragged_prefill(
                q,
                kv,
                prefill.page_table,
                prefill.query_start,
                prefill.query_len,
                prefill.context_lens,
                longest=prefill.longest,
                scale=self.spec.head_dim**-0.5,
                out=out,
                window=self.window,
                deterministic=self.deterministic,
            )
