"""A runner without tensors, whose tokens prove that nobody sees anybody else's memory.

Pages are cells that really hold what was written to them. A draw reads its whole history back
through the page ids it was given, checks that every cell is what this sequence wrote there and
that its adapter's pages still hold the adapter, and hashes what it read into the next token. So
the tokens are a pure function of the sequence alone (``alone``), or the pass raises Corrupted.

A masked draw takes the next token that its mask allows, and is Corrupted without one.

A *delayed* runner is a device's queue: a pass is computed, and a token still being drawn becomes
known, when the pass is waited for, when a later one is, or when an adapter's memory is touched.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from adapters.errors import AdapterInvalid, AdapterMissing
from engine.built import Built
from engine.errors import AdapterUnusable
from engine.protocol import BaseInfo, Pooling, TokenLogprobs
from engine.speculation.proposer import Proposer
from engine.step import DRAWN, NO_ADAPTER, Chunk, Drawn, Masks, StepPlan, StepResult, verified
from tests.fakes.grammars import FakeGrammars, may

VOCAB = 97
EOS = 2
BASE = BaseInfo("fake-base", "LlamaForCausalLM", VOCAB, "none", "float32", hidden_size=2)


class Corrupted(AssertionError):
    """A page did not hold what its reader wrote there."""


@dataclass(frozen=True, slots=True)
class Packed:
    digest: str
    pages: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One position's KV: what it was computed from."""

    token: int
    position: int
    adapter: str


def next_token(history: Sequence[int], adapter: str, seed: int, barred: Sequence[int] = ()) -> int:
    key = f"{list(history)}/{adapter}/{seed}".encode()
    token = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % VOCAB
    while token in barred:
        token = (token + 1) % VOCAB
    return token


def alone(
    prompt: Sequence[int],
    count: int,
    *,
    seed: int,
    adapter: str = "",
    stops: Sequence[int] = (),
    barred_until: int = 0,
) -> tuple[list[int], int | None]:
    """Tokens of a sequence that has the engine to itself, and the token that stopped it."""
    history = list(prompt)
    for made in range(count):
        token = next_token(history, adapter, seed, stops if made < barred_until else ())
        if token in stops:
            return history[len(prompt) :], token
        history.append(token)
    return history[len(prompt) :], None


@dataclass
class FakeMemory:
    """AdapterMemory: a row is the pages that must hold its adapter."""

    cells: dict[int, dict[int, Cell] | str] = field(default_factory=dict)  # by page
    rows: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)
    settle: Callable[[], None] = lambda: None  # computes what was launched so far

    def pages_for(self, packed: Packed) -> int:
        return packed.pages

    def place(self, row: int, packed: Packed, pages: Sequence[int]) -> None:
        if packed.digest in self.unusable:
            raise AdapterUnusable(f"{packed.digest} cannot be laid out")
        self.settle()
        if row in self.rows:
            raise Corrupted(f"row {row} is in use")
        self.rows[row] = (packed.digest, list(pages))
        for page in pages:
            self.cells[page] = packed.digest

    def clear(self, row: int) -> None:
        self.settle()
        del self.rows[row]

    def read(self, row: int) -> str:
        if row == NO_ADAPTER:
            return ""
        digest, pages = self.rows[row]
        if any(self.cells[page] != digest for page in pages):
            raise Corrupted(f"the pages of adapter {digest} were written over")
        return digest


@dataclass
class FakeSwap:
    """PageSwap: a slot holds what its page held when it was copied."""

    memory: FakeMemory
    slots: int
    page_s: float = 0.0
    held: dict[int, dict[int, Cell] | str] = field(default_factory=dict)
    copied: list[tuple[str, int]] = field(default_factory=list)  # which way, how many

    def out(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        self.memory.settle()
        self.copied.append(("out", len(pages)))
        for page, slot in zip(pages, slots, strict=True):
            held = self.memory.cells.get(page, {})
            self.held[slot] = dict(held) if isinstance(held, dict) else held

    def back(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        self.memory.settle()
        self.copied.append(("back", len(pages)))
        for slot, page in zip(slots, pages, strict=True):
            held = self.held[slot]
            self.memory.cells[page] = dict(held) if isinstance(held, dict) else held


@dataclass
class FakeHost:
    """HostCache: an adapter named ``d3`` takes three pages; ``delay`` polls until it is here."""

    delay: int = 0
    missing: set[str] = field(default_factory=set)
    invalid: set[str] = field(default_factory=set)
    requested: list[str] = field(default_factory=list)
    polls: dict[str, int] = field(default_factory=dict)

    def request(self, digest: str) -> None:
        self.requested.append(digest)
        self.polls[digest] = 0

    def poll(self, digest: str) -> Packed | Exception | None:
        self.polls[digest] += 1
        if self.polls[digest] <= self.delay:
            return None
        if digest in self.missing:
            return AdapterMissing(f"no adapter {digest}")
        if digest in self.invalid:
            return AdapterInvalid([f"{digest} has no lora_A"])
        return Packed(digest, int(digest[-1]))

    def holds(self, digest: str) -> bool:
        bad = digest in self.missing or digest in self.invalid
        return self.polls.get(digest, -1) > self.delay and not bad

    def drop(self, digest: str) -> None:
        self.polls.pop(digest, None)


@dataclass(eq=False)
class Launched:
    """Pending: one pass in the queue, and what it brought once it is computed."""

    runner: "FakeRunner"
    plan: StepPlan
    error: Exception | None
    result: StepResult | Exception | None = None
    masks: Masks | None = None

    @property
    def masked(self) -> bool:
        return any(chunk.draw and chunk.draw.masked for chunk in self.plan.chunks)

    def draw(self, masks: Masks) -> None:
        assert self.masked
        assert self.masks is None
        self.masks = masks
        if not self.runner.delayed:
            self.runner.settle()

    def wait(self) -> StepResult:
        self.runner.settle(self)
        if self.error or isinstance(self.result, Exception):
            raise self.error or self.result  # type: ignore[misc]
        assert isinstance(self.result, StepResult)
        return self.result


@dataclass
class FakeRunner:
    page_tokens: int
    memory: FakeMemory
    delayed: bool = False
    pass_seconds: float = 0.0
    broken: Callable[[StepPlan], Exception | None] = lambda plan: None
    poisoned: set[int] = field(default_factory=set)  # a history with this token fails its row
    plans: list[StepPlan] = field(default_factory=list)
    keep_plans: bool = True
    queue: list[Launched] = field(default_factory=list)
    passes: Callable[[], None] = lambda: None  # time does, with each pass
    drawn: dict[int, int] = field(default_factory=dict)  # by the pass computed last
    verifying: int = 0  # chunks with drafts
    corrupted: list[Corrupted] = field(default_factory=list)  # passes that saw foreign memory

    def launch(self, plan: StepPlan) -> Launched:
        if self.keep_plans:
            self.plans.append(plan)
        self.passes()
        if self.pass_seconds:
            time.sleep(self.pass_seconds)
        now = StepPlan([_as_of_now(chunk) for chunk in plan.chunks], plan.copies)
        launched = Launched(self, now, self.broken(plan))
        if any(earlier.masked and earlier.masks is None for earlier in self.queue):
            raise Corrupted("a pass is launched before an earlier one drew")
        self.queue.append(launched)
        if not self.delayed and not launched.masked:
            self.settle()
        return launched

    def settle(self, last: Launched | None = None) -> None:
        """Compute what was launched, up to a pass."""
        while self.queue and (last is None or last in self.queue):
            launched = self.queue.pop(0)
            try:
                launched.result = self._run(launched.plan, launched.masks)
            except Corrupted as corrupted:
                launched.result = corrupted
                self.corrupted.append(corrupted)

    def _run(self, plan: StepPlan, masks: Masks | None) -> StepResult:
        for source, target in plan.copies:
            held = self.memory.cells.get(source)
            self.memory.cells[target] = dict(held) if isinstance(held, dict) else {}
        chunks = [self._resolved(chunk) for chunk in plan.chunks]
        for chunk in chunks:
            self._write(chunk)
        drawn = [self._compute(chunk, masks) for chunk in chunks]
        self.drawn = {
            c.sequence: d.token or 0 for c, d in zip(chunks, drawn, strict=True) if c.draw
        }
        return StepResult(drawn)

    def _resolved(self, chunk: Chunk) -> Chunk:
        """With the token that the pass before drew."""
        if chunk.tokens[-1] != DRAWN:
            return chunk
        token, draw = self.drawn[chunk.sequence], chunk.draw
        if draw is not None:
            draw = replace(draw, output=[*draw.output, token])
        return replace(chunk, tokens=[*chunk.tokens[:-1], token], draw=draw)

    def _write(self, chunk: Chunk) -> None:
        own = self.memory.read(chunk.adapter)
        for position, token in enumerate(chunk.tokens, chunk.start):
            adapter = own if position >= chunk.active_from else ""
            page = chunk.pages[position // self.page_tokens]
            cells = self.memory.cells.get(page)
            if not isinstance(cells, dict):
                cells = self.memory.cells[page] = {}
            cells[position % self.page_tokens] = Cell(token, position, adapter)

    def _compute(self, chunk: Chunk, masks: Masks | None) -> Drawn:
        stop = chunk.start + len(chunk.tokens)
        adapter = self.memory.read(chunk.adapter)
        history = [self._read(chunk, position, adapter) for position in range(stop)]
        if list(history[chunk.start :]) != list(chunk.tokens):
            raise Corrupted("a chunk's own tokens are not what it wrote")
        self.verifying += bool(chunk.drafts)
        if self.poisoned & set(history[: stop - len(chunk.drafts)]):
            return Drawn(failed="non-finite logits")
        prompt = [logprob(t) for t in chunk.tokens[1:]] if chunk.prompt_logprobs is not None else ()
        pooled = _pooled(chunk)
        if chunk.draw is None:
            return Drawn(prompt_logprobs=prompt, pooled=pooled)
        rows = []
        for place in range(len(chunk.draws)):
            known = history[: stop - len(chunk.drafts) + place]
            rows.append(self._draw(chunk, known, adapter, masks, place))
        return verified(chunk, [replace(rows[0], prompt_logprobs=prompt, pooled=pooled), *rows[1:]])

    def _draw(
        self, chunk: Chunk, known: list[int], adapter: str, masks: Masks | None, place: int
    ) -> Drawn:
        """In one of the last rows: after so many drafts."""
        draw = chunk.draws[place]
        told = [*draw.prompt, *draw.output]
        if known[: len(told)] != told or len(draw.prompt) + draw.position != len(known):
            raise Corrupted("what was computed is not what is known")
        if self.poisoned & set(known):
            return Drawn(failed="non-finite logits")
        barred = _barred(chunk, masks, place)
        if place and len(barred) == VOCAB:
            return Drawn(failed="nothing may come after this draft")
        token = next_token(known, adapter, draw.seed, barred)
        return Drawn(token, None if draw.logprobs is None else logprob(token))

    def _read(self, chunk: Chunk, position: int, adapter: str) -> int:
        cells = self.memory.cells.get(chunk.pages[position // self.page_tokens])
        cell = cells.get(position % self.page_tokens) if isinstance(cells, dict) else None
        adapter = adapter if position >= chunk.active_from else ""
        if cell is None or (cell.position, cell.adapter) != (position, adapter):
            raise Corrupted(f"position {position} of sequence {chunk.sequence} holds {cell}")
        return cell.token


def _pooled(chunk: Chunk) -> npt.NDArray[np.float64] | None:
    """Of each token itself and a one."""
    if chunk.pooling is None:
        return None
    tokens = chunk.tokens if chunk.pooling is Pooling.MEAN else chunk.tokens[-1:]
    return np.array([sum(tokens), len(tokens)], dtype=np.float64)


def _barred(chunk: Chunk, masks: Masks | None, place: int) -> Sequence[int]:
    """Tokens a draw of a chunk may not take. Its mask has the barred ones in it."""
    draw = chunk.draws[place]
    if not draw.masked:
        return draw.barred
    if masks is None:
        raise Corrupted("a masked pass is computed before it drew")
    row = masks.rows.get(chunk.sequence)
    if row is None:
        return ()  # it ended meanwhile
    return [token for token in range(VOCAB) if not may(masks.bits[row + place], token)]


def _as_of_now(chunk: Chunk) -> Chunk:
    draws = [replace(draw, output=list(draw.output)) for draw in chunk.draws]
    return replace(chunk, draw=draws[0], drafts=draws[1:]) if draws else chunk


def logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token))


@dataclass
class Parts:
    """A built engine of fakes, and the fakes themselves."""

    runner: FakeRunner
    memory: FakeMemory
    host: FakeHost
    swap: FakeSwap
    built: Built[Packed]


def build(
    *,
    num_pages: int = 32,
    page_tokens: int = 4,
    max_model_len: int = 64,
    eos: frozenset[int] = frozenset({EOS}),
    store: bool = True,
    ahead: bool = False,
    grammars: FakeGrammars | None = None,
    slots: int = 0,
    proposer: Proposer | None = None,
) -> Parts:
    """``slots``: pages that can be swapped out."""
    memory, host = FakeMemory(), FakeHost()
    swap = FakeSwap(memory, slots)
    runner = FakeRunner(page_tokens, memory, delayed=ahead)
    memory.settle = runner.settle
    built = Built(
        runner=runner,
        memory=memory,
        base=BASE,
        num_pages=num_pages,
        max_model_len=max_model_len,
        eos=eos,
        adapters=host if store else None,
        ahead=ahead,
        grammars=grammars,
        proposer=proposer,
        swap=swap if slots else None,
    )
    return Parts(runner, memory, host, swap, built)
