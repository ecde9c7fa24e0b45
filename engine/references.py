"""Answers what the model and an adapter are by their definition: the oracle of a canary.

Always float32 on the CPU, from the checkpoint and the stored adapter, with no kernel and no page:
whatever the engine does differently shows. Runs beside the loop, in one thread of the wire.
"""

from collections.abc import Callable

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterError
from adapters.pack import PackedAdapter, pack
from adapters.store import AdapterStore
from engine.bench.reference import Reference
from engine.checkpoint import Checkpoint
from engine.errors import AdapterUnusable
from engine.protocol import AskReference, Verdict


class References:
    def __init__(
        self,
        model: str,
        store: AdapterStore,
        base: BaseSpec,
        pages_for: Callable[[PackedAdapter], int],
    ) -> None:
        self._model, self._store, self._base, self._pages_for = model, store, base, pages_for

    def __call__(self, ask: AskReference) -> Verdict:
        """An adapter that cannot be had, or whose logits are not finite, is a Verdict too."""
        try:
            packed = pack(self._store.open(ask.adapter.digest), self._base, torch.float32)
            pages = self._pages_for(packed)
        except (AdapterError, AdapterUnusable) as error:
            return Verdict(ask.request, error=str(error))
        reference = Reference(Checkpoint(self._model), torch.device("cpu"))
        active = _active_from(ask.tokens, ask.adapter.invocation)
        (logits,) = reference.logits([ask.tokens], [packed], active=[active])
        if not logits.isfinite().all():
            return Verdict(ask.request, error="the float32 reference is not finite")
        logprobs = logits.log_softmax(dim=-1)
        found = [logprobs[i, torch.tensor(top)].tolist() for i, top in enumerate(ask.tops)]
        return Verdict(ask.request, logprobs=found, pages=pages)


def _active_from(tokens: list[int], invocation: tuple[int, ...]) -> int:
    """The position an aLoRA is active from; past the end when nothing invokes it."""
    length = len(invocation)
    for start in range(len(tokens) - length, -1, -1):
        if tuple(tokens[start : start + length]) == invocation:
            return start
    return len(tokens)
