"""Passes with prompts as CUDA graphs: the host takes some 50 ms to launch the kernels of one.

One is captured per bucket of tokens, with and without adapters; ``mixed_layout`` says how a plan is
padded to it. The result is the hidden state of the rows whose logits somebody wants: head and draws
are few launches, which the host makes while the graph runs. Passes of more tokens than the largest
bucket keep the device busy for longer than their launches take.

As with ``DecodeGraphs``, an adapter table that grows has graphs captured again at their next use.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.adapter_table import AdapterTable
from engine.batch import DecodeRows, HeadLayout, HostBatch, PrefillChunks, StepInputs
from engine.capturing import PinnedStages, captured
from engine.last_draws import LastDraws
from engine.mixed_layout import MixedLayout
from kernels.segments import SEGMENT_TILES, Segments

BUCKETS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)  # tokens

Hidden = Callable[[StepInputs], torch.Tensor]  # of the rows of the head, [R, H]


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    hidden: torch.Tensor  # [D, H]
    sites: object  # the adapter table's sites at capture


class MixedGraphs:
    """Belongs to the engine loop's thread; CUDA only."""

    def __init__(
        self,
        hidden: Hidden,
        adapters: AdapterTable,
        last: LastDraws,
        *,
        max_seqs: int,
        max_tokens: int,
        max_pages: int,
    ) -> None:
        self._hidden, self._adapters, self._last = hidden, adapters, last
        self._device = last.tokens.device
        sizes = [tokens for tokens in BUCKETS if tokens <= max_tokens]
        self._layouts = [MixedLayout(tokens, max_seqs, max_pages) for tokens in sizes]
        block = max((layout.size for layout in self._layouts), default=0)
        self._block = torch.zeros(block, dtype=torch.int32, device=self._device)
        self._stages = PinnedStages((block,))
        self._graphs: dict[tuple[int, bool], _Graph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    @property
    def buckets(self) -> int:
        return len(self._layouts)

    @property
    def nbytes(self) -> int:
        """What it takes before anything is captured."""
        return self._block.nbytes

    def warm(self) -> None:
        """Run what a capture records."""
        for layout in self._layouts:
            for adapted in (True, False):
                self._blank(layout)
                self._pass(layout, adapted)

    def capture(self, first: int = 0, end: int | None = None, *, tried: bool = False) -> None:
        """Capture buckets, the largest first so that the others share its memory. ``tried``: see
        ``captured``."""
        for layout in self._layouts[::-1][first:end]:
            for adapted in (True, False):
                self._graphs[layout.tokens, adapted] = self._capture(layout, adapted, tried=tried)

    def run(self, host: HostBatch) -> torch.Tensor | None:
        """Launch a pass; the hidden state of its rows of the head, valid until the next is
        launched. None for a plan that fits no bucket."""
        layout = next((layout for layout in self._layouts if layout.holds(host)), None)
        if layout is None:
            return None
        key = layout.tokens, bool(host.runs)
        found = self._graphs[key]
        if host.runs and found.sites is not self._adapters.sites:
            found = self._graphs[key] = self._capture(layout, adapted=True)

        def fill(stage: torch.Tensor) -> int:
            layout.fill(host, stage.numpy())
            return layout.size

        self._stages.send(fill, self._block)
        found.graph.replay()
        return found.hidden[: len(host.arrays["head_rows"])]

    def _blank(self, layout: MixedLayout) -> None:
        block = torch.zeros(layout.size, dtype=torch.int32)
        layout.blank(block.numpy())
        self._block[: layout.size].copy_(block)

    def _capture(self, layout: MixedLayout, adapted: bool, *, tried: bool = False) -> _Graph:
        """Where the pass is run to try it, over a batch of nothing."""
        self._blank(layout)
        graph, hidden = captured(
            lambda: self._pass(layout, adapted), self._memory, self._device, tried=tried
        )
        return _Graph(graph, hidden, self._adapters.sites)

    def _pass(self, layout: MixedLayout, adapted: bool) -> torch.Tensor:
        return self._hidden(padded_inputs(layout, self._block, self._last.tokens, adapted))


def padded_inputs(
    layout: MixedLayout, block: torch.Tensor, drawn: torch.Tensor, adapted: bool
) -> StepInputs:
    """The inputs of a pass, read from a block on the device. ``drawn``: see ``LastDraws``."""
    at = {
        name: block[offset : offset + torch.Size(shape).numel()].view(shape)
        for name, (offset, shape) in layout.fields().items()
    }
    source = at["source"].long()
    segments = Segments(
        start=at["segment start"],
        length=at["segment length"],
        adapter=at["segment adapter"],
        longest=SEGMENT_TILES[-1],
        runs=(),
    )
    return StepInputs(
        tokens=torch.where(source >= 0, drawn[source.clamp(min=0)], at["tokens"].long()),
        positions=at["positions"].long(),
        slots=at["slots"].long(),
        decode=DecodeRows(
            page_table=at["decode pages"],
            context_lens=at["decode end"],
            rows=at["decode start"],
            query_len=at["decode end"].clamp(max=1),
        ),
        prefill=PrefillChunks(
            page_table=at["prefill pages"],
            query_start=at["prefill start"],
            query_len=at["prefill len"],
            context_lens=at["prefill end"],
            longest=layout.tokens,
        ),
        segments=segments if adapted else None,
        head_rows=at["head_rows"].long(),
        heads=HeadLayout((), ()),
    )
