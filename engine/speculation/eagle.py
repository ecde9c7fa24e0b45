"""Drafts by an EAGLE-3 head, which goes on from what the base thought.

Position q of its keys and values belongs to the token at q + 1 read together with the base's
features at q. So the last row of every pass waits (*pending*) until the token after it is known:
of a prompt that is one row, of a pass that verified drafts one for each token it brought. With the
first draft the rows that wait are computed, over what drafts before them wrote.
"""

from collections.abc import Mapping, Sequence

import torch

from engine.batch import BatchBuilder
from engine.page_memory import LayerPages, PageMemory
from engine.page_size import page_elements
from engine.speculation.eagle_head import EagleHead
from engine.speculation.pending import Pending
from engine.speculation.proposer import Ask
from engine.speculation.stretches import Stretch, batch, gathered, on, steps
from engine.speculation.watcher import Seen


class EagleProposer:
    """A ``Watcher``. Drafts are the head's most likely tokens."""

    def __init__(
        self,
        head: EagleHead,
        builder: BatchBuilder,
        *,
        dtype: torch.dtype,
        device: torch.device,
        page_tokens: int,
    ) -> None:
        self.layers: Sequence[int] = head.spec.layers
        self._head, self._builder, self._device = head, builder, device
        self._dtype, self._page_tokens = dtype, page_tokens
        self._memory: PageMemory | None = None
        self._pending: dict[int, Pending] = {}

    @property
    def page_bytes(self) -> int:
        item = self._dtype.itemsize
        return page_elements(self._head.spec.layer, self._page_tokens, item=item) * item

    def allocate(self, num_pages: int) -> None:
        self._memory = PageMemory(
            self._head.spec.layer,
            self._page_tokens,
            num_pages=num_pages,
            dtype=self._dtype,
            device=self._device,
        )

    @torch.inference_mode()
    def watch(self, seen: Seen) -> None:
        assert self._memory is not None, "pages are allocated before the first pass"
        assert seen.features is not None, "features are what it asked for"
        self._memory.copy(seen.copies)
        ends = (f + len(c.tokens) for f, c in zip(seen.first_rows, seen.chunks, strict=True))
        fused = self._head.fuse(seen.features[: max(ends)])
        stretches: list[Stretch] = []
        rows: list[torch.Tensor] = []
        for chunk, first in zip(seen.chunks, seen.first_rows, strict=True):
            here = fused[first : first + len(chunk.tokens)]
            before = self._pending.get(chunk.sequence)
            if chunk.drafts or (len(chunk.tokens) == 1 and chunk.draw is not None):
                if before is None:
                    self._wait(chunk.sequence, chunk.start, here)
                else:
                    before.join(chunk.start, here)
                continue
            self._wait(chunk.sequence, chunk.start + len(here) - 1, here[-1:].clone())
            joins = before is not None and before.end == chunk.start
            if joins and before is not None:  # the last row before has its token now
                rows.append(before.pieces[-1][-1:])
            rows.append(here[:-1])
            tokens = chunk.tokens[not joins :]
            if tokens:
                stretches.append(Stretch(chunk.sequence, tokens, chunk.start - joins, chunk.pages))
        if stretches:
            self._compute(stretches, torch.cat(rows))

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> Mapping[int, Sequence[int]]:
        asks = [ask for ask in asks if self._follows(ask)]
        if not asks:
            return {}
        stretches: list[Stretch] = []
        rows: list[torch.Tensor] = []
        for ask in asks:
            pending = self._pending[ask.sequence]
            count = ask.known - 1 - pending.first
            rows += pending.rows(count)
            stretches.append(Stretch(ask.sequence, ask.last(count), pending.first, ask.pages))
            pending.computed = count
        hidden = self._compute(stretches, torch.cat(rows), ends=True)
        drawn = [self._head.say(hidden)]
        for going, stretches in steps(asks, -1):
            which = on(self._device, going)
            hidden = self._compute(stretches, hidden[which], tokens=drawn[-1][which], ends=True)
            drawn.append(self._head.say(hidden))
        return gathered(asks, drawn)

    def forget(self, sequence: int) -> None:
        self._pending.pop(sequence, None)

    def _wait(self, sequence: int, first: int, rows: torch.Tensor) -> None:
        self._pending[sequence] = Pending(first, [rows], len(rows))

    def _follows(self, ask: Ask) -> bool:
        """What the base thought at the last computed position is here."""
        pending = self._pending.get(ask.sequence)
        return pending is not None and pending.first < ask.known - 1 <= pending.end

    def _compute(
        self,
        stretches: Sequence[Stretch],
        hidden: torch.Tensor,
        *,
        tokens: torch.Tensor | None = None,
        ends: bool = False,
    ) -> torch.Tensor:
        """What the head makes of the last row of each stretch, or of none."""
        inputs = batch(self._builder, stretches, ends=ends, tokens=tokens)
        return self._head(inputs.tokens, hidden, self._pages, inputs)[inputs.head_rows]

    @property
    def _pages(self) -> LayerPages:
        assert self._memory is not None, "pages are allocated before the first pass"
        return self._memory.layers[0]
