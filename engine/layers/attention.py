"""Attention over the page pool: rotate, write K and V, then read back through the page tables.

Rows with one token (decode) and chunks of several (prefill) may be mixed in any order; each kind
has its kernel, and both write their own rows of one output.
"""

from dataclasses import dataclass

import torch

from engine.batch import PrefillChunks, StepInputs
from engine.models.spec import ModelSpec
from engine.page_memory import LayerPages
from kernels.paged_decode import paged_decode
from kernels.qkv_heads import HeadNorms, qkv_heads
from kernels.ragged_prefill import ragged_prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's attention between its linears."""

    spec: ModelSpec
    cos_sin: torch.Tensor  # float32 [positions, D]; one for all layers
    window: int = 0  # tokens a token sees, itself included; 0: all before it
    norms: HeadNorms | None = None
    deterministic: bool = False
    dtype: torch.dtype | None = None  # of the queries; None: that of keys, which are not narrow

    def __call__(
        self,
        qkv: torch.Tensor,
        pages: LayerPages,
        inputs: StepInputs,
        *,
        addend: torch.Tensor | None = None,
        chain: bool = True,
    ) -> torch.Tensor:
        """[T, (QH + 2 KVH) D], or addends of it [P, T, ..] and [T, ..], to [T, QH D].

        Writes this pass's K and V into the layer's pages.
        """
        spec, T = self.spec, qkv.shape[-2]
        q = qkv_heads(
            qkv,
            pages.kv,
            positions=inputs.positions,
            slots=inputs.slots,
            cos_sin=self.cos_sin,
            addend=addend,
            norms=self.norms,
            new=None if inputs.places is None else inputs.places.new,
            magnitudes=pages.magnitudes,
            dtype=self.dtype,
            chain=chain,
        )
        out = torch.empty((T, spec.num_heads, spec.head_dim), dtype=q.dtype, device=q.device)
        self._decode(q, pages, inputs, out)
        if inputs.prefill is not None:
            self._chunks(q, pages, inputs.prefill, out)
        return out.view(T, spec.query_size)

    def _decode(
        self, q: torch.Tensor, pages: LayerPages, inputs: StepInputs, out: torch.Tensor
    ) -> None:
        """In deterministic mode a decode is a chunk of one token: a row is the same to the bit
        whether its token was drawn, computed with a prompt, or computed again."""
        decode = inputs.decode
        if decode is None:
            return
        if self.deterministic and q.is_cuda:
            self._chunks(q, pages, decode.as_chunks(), out)
            return
        paged_decode(
            q,
            pages.kv,
            decode.page_table,
            decode.context_lens,
            rows=decode.rows,
            scale=self.spec.head_dim**-0.5,
            out=out,
            window=self.window,
            deterministic=self.deterministic,
            seen=None if inputs.places is None else inputs.places.seen,
            magnitudes=pages.magnitudes,
            query_len=decode.query_len,
            queries=decode.queries,
        )

    def _chunks(
        self, q: torch.Tensor, pages: LayerPages, chunks: PrefillChunks, out: torch.Tensor
    ) -> None:
        ragged_prefill(
            q,
            pages.kv,
            chunks.page_table,
            chunks.query_start,
            chunks.query_len,
            chunks.context_lens,
            magnitudes=pages.magnitudes,
            longest=chunks.longest,
            scale=self.spec.head_dim**-0.5,
            out=out,
            window=self.window,
            deterministic=self.deterministic,
        )
