"""Drafts by a smaller model of the base's vocabulary, one pass of it for each.

It computes the prompts the base computes, chunk by chunk, so that no sequence waits long for its
first draft. What a sequence has decoded it catches up with when it is next asked: where drafts were
kept, their keys and values are there already.
"""

from collections.abc import Mapping, Sequence

import torch

from engine.batch import BatchBuilder
from engine.models.decoder import Decoder
from engine.page_memory import PageMemory
from engine.page_size import page_elements
from engine.speculation.proposer import Ask
from engine.speculation.stretches import Stretch, batch, gathered, on, steps
from engine.speculation.watcher import Seen


class DraftModelProposer:
    """A ``Watcher``. Drafts are the model's most likely tokens."""

    layers: Sequence[int] = ()

    def __init__(
        self,
        model: Decoder,
        builder: BatchBuilder,
        *,
        dtype: torch.dtype,
        device: torch.device,
        page_tokens: int,
        vocabulary: int,
    ) -> None:
        """``vocabulary``: of the base, whose padding may be another."""
        self._model, self._builder, self._device = model, builder, device
        self._dtype, self._page_tokens = dtype, page_tokens
        self._vocabulary = min(vocabulary, model.spec.vocab_size)
        self._memory: PageMemory | None = None
        # Of each sequence the tokens whose keys and values are computed, the drafts after what it
        # knew included.
        self._computed: dict[int, int] = {}
        self._drafted: dict[int, tuple[int, list[int]]] = {}  # what it knew then, and the drafts

    @property
    def page_bytes(self) -> int:
        item = self._dtype.itemsize
        return page_elements(self._model.spec, self._page_tokens, item=item) * item

    def allocate(self, num_pages: int) -> None:
        self._memory = PageMemory(
            self._model.spec,
            self._page_tokens,
            num_pages=num_pages,
            dtype=self._dtype,
            device=self._device,
        )

    @torch.inference_mode()
    def watch(self, seen: Seen) -> None:
        assert self._memory is not None, "pages are allocated before the first pass"
        self._memory.copy(seen.copies)
        for chunk in seen.chunks:  # what a new one has before is somebody's, found computed
            self._computed.setdefault(chunk.sequence, chunk.start)
        prompts = [
            Stretch(chunk.sequence, chunk.tokens, chunk.start, chunk.pages)
            for chunk in seen.chunks
            if len(chunk.tokens) > 1 and not chunk.drafts
        ]
        prompts = [each for each in prompts if each.start + len(each.tokens) <= self._reach]
        if not prompts:
            return
        self._run(prompts, None)
        for each in prompts:
            self._computed[each.sequence] = each.start + len(each.tokens)
            self._drafted.pop(each.sequence, None)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> Mapping[int, Sequence[int]]:
        asks = [ask for ask in asks if ask.known + ask.most <= self._reach]
        if not asks:
            return {}
        drawn = [self._run([self._missing(ask) for ask in asks], None, ends=True)]
        for rows, stretches in steps(asks, 0):
            drawn.append(self._run(stretches, drawn[-1][on(self._device, rows)], ends=True))
        drafts = gathered(asks, drawn)
        for ask in asks:
            # The last draft was not computed: the pass that verifies may show it is not needed.
            self._computed[ask.sequence] = ask.known + ask.most - 1
            self._drafted[ask.sequence] = ask.known, drafts[ask.sequence]
        return drafts

    def forget(self, sequence: int) -> None:
        self._computed.pop(sequence, None)
        self._drafted.pop(sequence, None)

    @property
    def _reach(self) -> int:
        return self._model.spec.max_position

    def _missing(self, ask: Ask) -> Stretch:
        """What the sequence knows and the model has not computed: the last token at least."""
        computed = min(self._computed.get(ask.sequence, ask.known), ask.known - 1)
        if ask.sequence in self._drafted:
            known, drafts = self._drafted[ask.sequence]
            since = ask.last(ask.known - known)
            kept = 0
            while kept < min(len(since), len(drafts)) and since[kept] == drafts[kept]:
                kept += 1
            computed = min(computed, known + kept)
        return Stretch(ask.sequence, ask.last(ask.known - computed), computed, ask.pages)

    def _run(
        self, stretches: Sequence[Stretch], tokens: torch.Tensor | None, *, ends: bool = False
    ) -> torch.Tensor:
        """[B] what it says after each; nothing without ``ends``. ``tokens`` where the stretches
        have none."""
        assert self._memory is not None
        inputs = batch(self._builder, stretches, ends=ends, tokens=tokens, most=self._vocabulary)
        hidden = self._model(inputs, self._memory.layers, None)
        if not ends:
            return inputs.head_rows
        return self._model.head(hidden)[:, : self._vocabulary].argmax(1)
