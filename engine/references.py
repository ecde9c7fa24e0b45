"""Answers what the model and an adapter are by their definition: the oracle of a canary.

Always float32 on the CPU, from the checkpoint and the stored adapter, with no kernel and no page:
whatever the engine does differently shows. Where adapters are
kept in 8 bits, the definition rounds them too. Runs beside the loop, in one thread of the wire.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterError
from adapters.narrow import Narrow, rounded
from adapters.pack import PackedAdapter, pack
from adapters.stores import Store
from engine.activation import active_from
from engine.bench.reference import Reference
from engine.checkpoint import Checkpoint
from engine.errors import AdapterUnusable
from engine.protocol import AskReference, Verdict


@dataclass(frozen=True, slots=True)
class Rounding:
    dtype: torch.dtype  # of what is rounded
    kind: Narrow


class References:
    def __init__(
        self,
        model: str,
        store: Store,
        base: BaseSpec,
        pages_for: Callable[[PackedAdapter], int],
        rounding: Rounding | None = None,
    ) -> None:
        """``rounding``: what is left of adapters that the engine keeps in 8 bits."""
        self._rounding = rounding
        self._model, self._store, self._base, self._pages_for = model, store, base, pages_for

    def __call__(self, ask: AskReference) -> Verdict:
        """An adapter that cannot be had, or whose logits are not finite, is a Verdict too."""
        try:
            packed = self._packed(ask.adapter.digest)
            pages = self._pages_for(packed)
            packed = packed if self._rounding is None else rounded(packed, self._rounding.kind)
        except (AdapterError, AdapterUnusable) as error:
            return Verdict(ask.request, error=str(error))
        reference = Reference(Checkpoint(self._model), torch.device("cpu"))
        start = active_from(ask.tokens, ask.adapter.invocation)
        adapted, plain = reference.logits(
            [ask.tokens, ask.tokens], [packed, None], active=[start, 0]
        )
        if not adapted.isfinite().all():
            return Verdict(ask.request, error="the float32 reference is not finite")
        return Verdict(
            ask.request,
            logprobs=_picked(adapted, ask.tops),
            pages=pages,
            base=_picked(plain, ask.tops),
        )

    def _packed(self, digest: str) -> PackedAdapter:
        """As the engine codes it, or exactly."""
        dtype = torch.float32 if self._rounding is None else self._rounding.dtype
        return pack(self._store.open(digest), self._base, dtype)


def _picked(logits: torch.Tensor, tops: list[list[int]]) -> list[list[float]]:
    logprobs = logits.log_softmax(dim=-1)
    return [logprobs[i, torch.tensor(top)].tolist() for i, top in enumerate(tops)]
