"""Runs plans: StepPlan -> tensors -> forward pass -> draws -> StepResult."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.adapter_table import AdapterTable
from engine.batch import BatchBuilder, HeadLayout, HostBatch, StepInputs
from engine.config import SPECULATING
from engine.decode_table import ADAPTER
from engine.errors import MemberLost
from engine.graphs import DecodeGraphs
from engine.images import ImageVectors
from engine.last_draws import LastDraws
from engine.layers.beside import Beside
from engine.layers.lora import LoraPass
from engine.layers.signals import Signals
from engine.layers.stacked import Stacks
from engine.mixed_graphs import MixedGraphs
from engine.models.decoder import Decoder
from engine.outer import OuterPass
from engine.page_memory import PageMemory
from engine.placement import round_up
from engine.protocol import TokenLogprobs
from engine.sampling import Drawing, TokenMasks, TopLogprobs, draw, is_adjusted, padded
from engine.speculation.features import Features
from engine.speculation.watcher import Watcher
from engine.staging import send
from engine.step import Chunk, Drawn, Masks, Pending, StepPlan, StepResult, verified
from engine.team.lead import Lead
from engine.team.orders import Compute, Copies, Decode, Packed, packed, unpacked

PROMPT_ROWS = 256  # rows of logits at a time for prompt log-probabilities


class Reached(Protocol):
    """A point of the device's work."""

    def synchronize(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PassPending:
    """A launched pass. On CUDA ``wait`` is where the host meets the device."""

    plan: StepPlan
    heads: HeadLayout
    drawing: Drawing | None
    prompts: Sequence[Sequence[tuple[TopLogprobs, int]]]  # per prompt: tiles and their rows
    pooled: torch.Tensor | None  # [P, H] float64, of the chunks that pool
    reached: Reached | None  # when all of this is on the host; None: it is

    def draw(self, masks: Masks) -> None:
        """It drew when it was launched."""

    def wait(self) -> StepResult:
        if self.reached is not None:
            self.reached.synchronize()
        drawn = [Drawn()] * len(self.plan.chunks)
        if self.drawing is not None:
            results = self.drawing.read()
            for chunk, rows in groupby(self.heads.draws, key=itemgetter(0)):
                found = [results[row] for _, row in rows]
                drawn[chunk] = verified(self.plan.chunks[chunk], found)
        for (chunk, _, _), tiles in zip(self.heads.prompts, self.prompts, strict=True):
            drawn[chunk] = replace(drawn[chunk], prompt_logprobs=self._read(chunk, tiles))
        for row, (chunk, _, _) in enumerate(self.heads.pools):
            drawn[chunk] = self._pooled(drawn[chunk], row)
        return StepResult(drawn)

    def _pooled(self, drawn: Drawn, row: int) -> Drawn:
        assert self.pooled is not None
        found = self.pooled[row].numpy()
        if not np.isfinite(found).all():
            return Drawn(failed="non-finite hidden state")
        return replace(drawn, pooled=found)

    def _read(self, chunk: int, tiles: Sequence[tuple[TopLogprobs, int]]) -> list[TokenLogprobs]:
        wanted = self.plan.chunks[chunk].prompt_logprobs or 0
        return [fact for tile, rows in tiles for fact in tile.read([wanted] * rows)]


class MaskedPass:
    """A pass whose forward part is launched; ``rest`` launches its draws."""

    def __init__(self, rest: Callable[[Masks], PassPending]) -> None:
        self._rest = rest
        self._drawn: PassPending | None = None

    @torch.inference_mode()
    def draw(self, masks: Masks) -> None:
        self._drawn = self._rest(masks)

    def wait(self) -> StepResult:
        assert self._drawn is not None, "a masked pass is waited for before it drew"
        return self._drawn.wait()


class ModelRunner:
    """Computes plans in the order they are launched. Belongs to the engine loop's thread."""

    def __init__(
        self,
        model: Decoder,
        memory: PageMemory,
        table: AdapterTable,
        builder: BatchBuilder,
        *,
        max_seqs: int = 256,
        max_tokens: int = 0,
        max_drafts: int = 0,
        images: ImageVectors | None = None,
        watcher: Watcher | None = None,
        lead: Lead | None = None,
    ) -> None:
        """``max_tokens``: of a pass, for graphs. ``max_drafts``: likewise, of a sequence.
        ``images``: None where the model reads text alone. ``lead``: of a team whose other members
        compute their part of every pass."""
        self._images, self._lead = images, lead
        self._model, self._memory, self._table, self._builder = model, memory, table, builder
        device = memory.pool.device
        stackable = device.type == "cpu" and not model.deterministic
        self._stacks = Stacks(table, memory.flat) if stackable else None
        self._max_seqs, self._last = max_seqs, LastDraws(max_seqs, device)
        self._max_tokens, self._max_drafts = max_tokens, max_drafts
        most = max(max_tokens, max_seqs * (1 + max_drafts))
        self._features = None if watcher is None else Features(
            watcher, rows=most, hidden=model.spec.hidden_size,
            dtype=model.embedding.table.dtype, device=device,
        )  # fmt: skip
        self._graphs: DecodeGraphs | None = None
        self._mixed: MixedGraphs | None = None
        self._verify: DecodeGraphs | None = None
        self._measured: dict[tuple[int, int], DecodeGraphs] = {}  # by drafts and sequences
        self._max_pages = 0
        cuda = device.type == "cuda"
        self._beside = Beside(torch.cuda.Stream(device)) if cuda else None  # type: ignore[no-untyped-call]
        self._signals = Signals(model.spec.num_layers, device) if cuda else None

    @torch.inference_mode()
    def capture(self, max_pages: int) -> None:
        """Capture passes; from then on they are replayed. CUDA only, after a rehearsal: that has
        tried them, but for what a proposer sees and what a team sends."""
        tried = self._features is None and self._lead is None and not self._model.is_part
        self._max_pages = max_pages
        self._graphs, self._mixed, self._verify = self.graphs(max_pages)
        for graphs in (self._graphs, self._mixed, self._verify):
            if graphs is not None:
                graphs.capture(tried=tried)

    def graphs(
        self, max_pages: int
    ) -> tuple[DecodeGraphs, MixedGraphs | None, DecodeGraphs | None]:
        """Not captured yet. In deterministic mode a row's neighbours must not choose its kernels,
        as the bucket of a pass with prompts does."""
        decode = self._decode_graphs(max_pages, self._max_seqs)
        verify = None
        if self._max_drafts:
            verify = self._decode_graphs(
                max_pages, min(self._max_seqs, SPECULATING), 1 + self._max_drafts
            )
        if self._model.deterministic:
            return decode, None, verify
        mixed = MixedGraphs(
            self._hidden,
            self._table,
            self._last,
            max_seqs=self._max_seqs + self._max_drafts * min(self._max_seqs, SPECULATING),
            max_tokens=self._max_tokens,
            max_pages=round_up(max_pages, 16),
        )
        return decode, mixed, verify

    def _decode_graphs(
        self,
        max_pages: int,
        max_seqs: int,
        queries: int = 1,
        buckets: Sequence[int] | None = None,
    ) -> DecodeGraphs:
        return DecodeGraphs(
            self._logits,
            self._table,
            self._last,
            max_seqs=max_seqs,
            max_pages=round_up(max_pages, 16),  # as the builder widens its page tables
            page_tokens=self._memory.page_tokens,
            vocabulary=self._model.spec.vocab_size,
            queries=queries,
            tell=None if self._lead is None else self._tell_decode,
            buckets=buckets,
        )

    @torch.inference_mode()
    def capture_drafts(self, drafts: Sequence[int], *, rows: int, adapted: bool) -> None:
        """Capture passes that verify so many drafts, one number or another, of so many sequences,
        to be measured. Where nothing is captured there is nothing to do."""
        if self._graphs is None:
            return
        self._verify = None  # its memory goes first
        for count in sorted(drafts, reverse=True):  # kernels of the largest are compiled first
            if (count, rows) not in self._measured:
                self._measured[count, rows] = self._decode_graphs(
                    self._max_pages, rows, 1 + count, buckets=(rows,)
                )
            self._measured[count, rows].capture(kinds=(adapted,))

    def draft_at_most(self, drafts: int, *, rows: int) -> None:
        """From now on passes are replayed of those that ``capture_drafts`` captured for it."""
        if self._graphs is None:
            return
        self._max_drafts, self._verify = drafts, self._measured[drafts, rows]

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        if not plan.chunks:
            return Nothing()
        self._memory.launch(plan)
        self._memory.await_copies()
        if plan.copies and self._lead is not None:
            self._lead.tell(Copies(tuple(plan.copies)))
        self._memory.copy(plan.copies)
        if self._table.arriving:
            self._table.await_rows(chunk.adapter for chunk in plan.chunks)
        outer = self._outer(plan)
        plain = outer is None and not any(chunk.images for chunk in plan.chunks)
        pending = self._replay(plan) if self._graphs is not None and plain else None
        if pending is not None:
            return pending
        lengths = [len(chunk.tokens) - len(chunk.drafts) for chunk in plan.chunks]
        decodes = [i for i, length in enumerate(lengths) if length == 1]
        if self._stacks is None or len(decodes) in (0, len(plan.chunks)):
            return self._compute(plan, outer)
        return self._apart(plan, decodes)

    def _apart(self, plan: StepPlan, decodes: Sequence[int]) -> Pending:
        """Decodes, then prompts: on a CPU few rows and many are different products (Int4), and a
        decode must not come out otherwise because a prompt joins."""
        prompts = [i for i in range(len(plan.chunks)) if i not in set(decodes)]
        parts = list[tuple[Sequence[int], Pending]]()
        for which in (decodes, prompts):
            part = StepPlan([plan.chunks[i] for i in which], plan.copies if not parts else ())
            parts.append((which, self._compute(part, self._outer(part))))
        return Apart(len(plan.chunks), parts)

    def _outer(self, plan: StepPlan) -> OuterPass | None:
        """When an adapter of the pass changes embeddings or head."""
        tables = self._table.outer
        if not tables or tables.keys().isdisjoint(chunk.adapter for chunk in plan.chunks):
            return None
        return OuterPass(self._memory.flat, tables, self._model.deterministic)

    def _head(
        self, hidden: torch.Tensor, outer: OuterPass | None, owners: Sequence[int]
    ) -> torch.Tensor:
        """float32 logits of rows whose adapters are ``owners``."""
        logits = self._model.head(hidden)
        return logits if outer is None else outer.head(hidden, logits, owners)

    def _replay(self, plan: StepPlan) -> Pending | None:
        assert self._graphs is not None
        if any(chunk.drafts for chunk in plan.chunks):
            return self._replay_drafts(plan)
        draws = [chunk.draw for chunk in plan.chunks if chunk.draw is not None]
        last = self._unread(plan.chunks) if any(map(is_adjusted, draws)) else None
        replayed = self._graphs.run(plan)
        if replayed is None:
            return None
        logits, tokens, finite = replayed.logits, replayed.tokens, replayed.finite
        self._show(plan, width=1)
        heads = HeadLayout.one_each(len(draws))
        if last is None:
            drawing = Drawing.of(logits, draws, tokens, finite)
            return PassPending(plan, heads, drawing, (), None, self._mark())

        def adjusted(masks: TokenMasks | None) -> PassPending:
            """The graph's own draw knew of no adjustment."""
            drawing = draw(logits, draws, last, masks)
            self._last.keep(plan.chunks, drawing.drawn)
            return PassPending(plan, heads, drawing, (), None, self._mark())

        return _draw_when_masked(plan.chunks, adjusted)

    def _replay_drafts(self, plan: StepPlan) -> Pending | None:
        """Every sequence has as many rows as any may have; those it lacks are drawn from as well,
        and not read."""
        replayed = None if self._verify is None else self._verify.run(plan)
        if replayed is None:
            return None
        queries = 1 + self._max_drafts
        self._show(plan, width=queries)
        draws = [draw for chunk in plan.chunks for draw in padded(chunk.draws, queries)]
        heads = HeadLayout.several_each([len(chunk.draws) for chunk in plan.chunks], queries)
        logits, tokens, finite = replayed.logits, replayed.tokens, replayed.finite
        if not any(map(is_adjusted, draws)):
            drawing = Drawing.of(logits, draws, tokens, finite)
            return PassPending(plan, heads, drawing, (), None, self._mark())

        def adjusted(masks: TokenMasks | None) -> PassPending:
            drawing = draw(logits, draws, None, masks)
            return PassPending(plan, heads, drawing, (), None, self._mark())

        return _draw_when_masked(plan.chunks, adjusted, queries)

    def _compute(self, plan: StepPlan, outer: OuterPass | None) -> Pending:
        host = self._builder.host(plan, self._last)
        drawing_chunks = [chunk for chunk in plan.chunks if chunk.draw is not None]
        draws = [draw for chunk in drawing_chunks for draw in chunk.draws]
        owning = [chunk for chunk in drawing_chunks for _ in chunk.draws]
        last = self._unread(owning) if any(map(is_adjusted, draws)) else None
        with self._together(plan, host, outer, draws=len(draws)):
            hidden = self._passed(plan, host, outer)
            self._show(plan)
            owners = [chunk.adapter for chunk in owning]
            logits = self._head(hidden[: len(draws)], outer, owners)
            prompts = self._prompts(plan, host.heads, hidden, outer)
        pooled = _pooled(host.heads, hidden)

        def drawn(masks: TokenMasks | None) -> PassPending:
            drawing = draw(logits, draws, last, masks) if draws else None
            self._last.keep(drawing_chunks, None if drawing is None else drawing.drawn)
            return PassPending(plan, host.heads, drawing, prompts, pooled, self._mark())

        return _draw_when_masked(drawing_chunks, drawn)

    @contextmanager
    def _together(
        self, plan: StepPlan, host: HostBatch, outer: OuterPass | None, *, draws: int
    ) -> Iterator[None]:
        """What is launched within, the other members of the team launch as well.

        Raises MemberLost for whatever goes wrong here: they would wait for this member.
        """
        if self._lead is None:
            yield
            return
        order = Compute(
            arrays=packed(host.arrays),
            runs=host.runs,
            longest=host.longest,
            plain=_is_plain(plan, outer),
            heads=tuple(_head_tiles(host.heads, draws)),
        )
        self._lead.tell(order)
        try:
            yield
        except MemberLost:
            raise
        except Exception as error:
            raise self._lead.lost(error) from error

    def _passed(self, plan: StepPlan, host: HostBatch, outer: OuterPass | None) -> torch.Tensor:
        """The hidden state of the rows of the head."""
        plain = _is_plain(plan, outer)
        if plain and self._mixed is not None:
            hidden = self._mixed.run(host)
            if hidden is not None:
                return hidden
        inputs = replace(self._builder.inputs(host, self._last), changed=not plain)
        if self._images is not None:
            inputs = replace(inputs, images=self._images.rows(plan.chunks))
        lora = self._lora(inputs, outer)
        return self._model(inputs, self._memory.layers, lora, self._features)

    def _show(self, plan: StepPlan, width: int | None = None) -> None:
        """Let a proposer see the pass."""
        if self._features is not None:
            self._features.show(plan.chunks, copies=plan.copies, width=width)

    @torch.inference_mode()
    def follow(self, order: Compute) -> None:
        """A pass that the lead has launched, on this member. What comes of it is the lead's."""
        host = HostBatch(unpacked(order.arrays), order.runs, HeadLayout.one_each(0), order.longest)
        self._await({adapter for _, _, adapter in order.runs})
        hidden = None
        if order.plain and self._mixed is not None:
            hidden = self._mixed.run(host)
        if hidden is None:
            inputs = replace(self._builder.inputs(host, None), changed=not order.plain)
            hidden = self._model(inputs, self._memory.layers, self._lora(inputs))
        for first, end in order.heads:
            self._model.head(hidden[first:end])

    @torch.inference_mode()
    def follow_decode(self, order: Decode) -> None:
        table = order.table.array().astype(np.int32, copy=False)
        graphs = self._graphs if len(table) == order.rows else self._verify
        assert graphs is not None, "the lead has captured what this member has not"
        self._await(set(table[:, ADAPTER].tolist()))
        graphs.replay(order.rows, order.adapted, table)

    def _await(self, adapters: set[int]) -> None:
        """A follower's pass comes after the copies it needs."""
        self._memory.await_copies()
        if self._table.arriving:
            self._table.await_rows(adapters)

    def _tell_decode(self, rows: int, adapted: bool, table: npt.NDArray[np.int32]) -> None:
        assert self._lead is not None
        self._lead.tell(Decode(rows, adapted, Packed.of(table)))

    def _unread(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """[B] the last token of each, where it was drawn and not read; elsewhere any."""
        rows = np.asarray([max(self._last.row(chunk), 0) for chunk in chunks])
        device = self._memory.pool.device
        return self._last.tokens[send({"rows": rows}, device)["rows"]]

    def _mark(self) -> Reached | None:
        if self._memory.pool.device.type == "cpu":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event if self._lead is None else self._lead.watched(event)

    def _logits(self, inputs: StepInputs, out: torch.Tensor) -> torch.Tensor:
        return self._model.head(self._hidden(inputs), out)

    def _hidden(self, inputs: StepInputs) -> torch.Tensor:
        """What graphs capture: there adapters' kernels run beside the base's."""
        lora = self._lora(inputs)
        if lora is not None and self._signals is not None:
            self._signals.begin()
            lora = replace(lora, beside=self._beside, signals=self._signals)
        return self._model(inputs, self._memory.layers, lora, self._features)

    def _lora(self, inputs: StepInputs, outer: OuterPass | None = None) -> LoraPass | None:
        if inputs.segments is None:
            return None
        return LoraPass(
            pool=self._memory.flat,
            sites=self._table.sites,
            segments=inputs.segments,
            deterministic=self._model.deterministic,
            stacked=None if self._stacks is None else self._stacks.rows(inputs.segments),
            outer=outer,
        )

    def _prompts(
        self,
        plan: StepPlan,
        heads: HeadLayout,
        hidden: torch.Tensor,
        outer: OuterPass | None,
    ) -> list[list[tuple[TopLogprobs, int]]]:
        """Per prompt that asks: the log-probability of each token given those before it."""
        found = []
        for chunk, first, count in heads.prompts:
            told = np.asarray(plan.chunks[chunk].tokens[1:], dtype=np.int64)
            tokens = send({"tokens": told}, hidden.device)["tokens"]
            wanted = plan.chunks[chunk].prompt_logprobs or 0
            tiles = []
            for at, end in _tiles(count):
                owners = [plan.chunks[chunk].adapter] * (end - at)
                logits = self._head(hidden[first + at : first + end], outer, owners)
                tiles.append((TopLogprobs.of(logits, tokens[at:end], wanted), end - at))
            found.append(tiles)
        return found


def _is_plain(plan: StepPlan, outer: OuterPass | None) -> bool:
    """No embedding and no logit is changed."""
    return outer is None and not any(chunk.images for chunk in plan.chunks)


def _tiles(rows: int) -> Iterator[tuple[int, int]]:
    """(first, end) of rows whose logits are computed at a time."""
    return pairwise([*range(0, rows, PROMPT_ROWS), rows])


def _head_tiles(heads: HeadLayout, draws: int) -> Iterator[tuple[int, int]]:
    """(first, end) among the rows of the head, in the order in which their logits are computed."""
    if draws:
        yield 0, draws
    for _, first, count in heads.prompts:
        yield from ((first + at, first + end) for at, end in _tiles(count))


def _pooled(heads: HeadLayout, hidden: torch.Tensor) -> torch.Tensor | None:
    """[P, H], on its way to the host.

    In float64, so that it does not show where a prompt was cut into chunks.
    """
    if not heads.pools:
        return None
    parts = [
        hidden[first : first + count].sum(0, dtype=torch.float64) for _, first, count in heads.pools
    ]
    return torch.stack(parts).to("cpu", non_blocking=True)


def _draw_when_masked(
    drawing: Sequence[Chunk],
    rest: Callable[[TokenMasks | None], PassPending],
    queries: int | None = None,
) -> Pending:
    """At once, or once the masks of these chunks are known. ``queries``: rows of each chunk, where
    they are padded."""
    if not any(chunk.draw and chunk.draw.masked for chunk in drawing):
        return rest(None)
    return MaskedPass(lambda masks: rest(TokenMasks.of(masks, drawing, queries)))


@dataclass(frozen=True, slots=True)
class Apart:
    """A plan computed in parts: which of its chunks each has."""

    chunks: int
    parts: Sequence[tuple[Sequence[int], Pending]]

    def draw(self, masks: Masks) -> None:
        for _, pending in self.parts:
            pending.draw(masks)

    def wait(self) -> StepResult:
        drawn = [Drawn()] * self.chunks
        for which, pending in self.parts:
            for i, found in zip(which, pending.wait().drawn, strict=True):
                drawn[i] = found
        return StepResult(drawn)


class Nothing:
    """The outcome of an empty plan."""

    def draw(self, masks: Masks) -> None:
        pass

    def wait(self) -> StepResult:
        return StepResult([])
