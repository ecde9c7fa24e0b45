"""A runner without tensors, whose tokens prove that nobody sees anybody else's memory.

Pages are cells that really hold what was written to them. A draw reads its whole history back
through the page ids it was given, checks that every cell is what this sequence wrote there and
that its adapter's pages still hold the adapter, and hashes what it read into the next token. So
the tokens are a pure function of the sequence alone (``alone``), or the pass raises Corrupted.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adapters.errors import AdapterInvalid, AdapterMissing
from engine.built import Built
from engine.errors import AdapterUnusable
from engine.protocol import BaseInfo, TokenLogprobs
from engine.step import NO_ADAPTER, Chunk, Drawn, StepPlan, StepResult

VOCAB = 97
EOS = 2
BASE = BaseInfo("fake-base", "LlamaForCausalLM", VOCAB, "none", "float32")


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

    def pages_for(self, packed: Packed) -> int:
        return packed.pages

    def place(self, row: int, packed: Packed, pages: Sequence[int]) -> None:
        if packed.digest in self.unusable:
            raise AdapterUnusable(f"{packed.digest} cannot be laid out")
        if row in self.rows:
            raise Corrupted(f"row {row} is in use")
        self.rows[row] = (packed.digest, list(pages))
        for page in pages:
            self.cells[page] = packed.digest

    def clear(self, row: int) -> None:
        del self.rows[row]

    def read(self, row: int) -> str:
        if row == NO_ADAPTER:
            return ""
        digest, pages = self.rows[row]
        if any(self.cells[page] != digest for page in pages):
            raise Corrupted(f"the pages of adapter {digest} were written over")
        return digest


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


@dataclass
class Ready:
    """Pending: the result is there, or the pass raises when it is waited for."""

    result: StepResult | Exception

    def wait(self) -> StepResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@dataclass
class FakeRunner:
    page_tokens: int
    memory: FakeMemory
    pass_seconds: float = 0.0
    broken: Callable[[StepPlan], Exception | None] = lambda plan: None
    poisoned: set[int] = field(default_factory=set)  # a history with this token fails its row
    plans: list[StepPlan] = field(default_factory=list)
    keep_plans: bool = True

    def launch(self, plan: StepPlan) -> Ready:
        if self.keep_plans:
            self.plans.append(plan)
        if self.pass_seconds:
            time.sleep(self.pass_seconds)
        for chunk in plan.chunks:
            self._write(chunk)
        if error := self.broken(plan):
            return Ready(error)
        return Ready(StepResult([self._compute(chunk) for chunk in plan.chunks]))

    def _write(self, chunk: Chunk) -> None:
        adapter = self.memory.read(chunk.adapter)
        for position, token in enumerate(chunk.tokens, chunk.start):
            page = chunk.pages[position // self.page_tokens]
            cells = self.memory.cells.get(page)
            if not isinstance(cells, dict):
                cells = self.memory.cells[page] = {}
            cells[position % self.page_tokens] = Cell(token, position, adapter)

    def _compute(self, chunk: Chunk) -> Drawn:
        stop = chunk.start + len(chunk.tokens)
        adapter = self.memory.read(chunk.adapter)
        history = [self._read(chunk, position, adapter) for position in range(stop)]
        if list(history[chunk.start :]) != list(chunk.tokens):
            raise Corrupted("a chunk's own tokens are not what it wrote")
        if self.poisoned & set(history):
            return Drawn(failed="non-finite logits")
        prompt = [logprob(t) for t in chunk.tokens[1:]] if chunk.prompt_logprobs is not None else ()
        if chunk.draw is None:
            return Drawn(prompt_logprobs=prompt)
        draw = chunk.draw
        if history != [*draw.prompt, *draw.output] or draw.position != len(draw.output):
            raise Corrupted("what was computed is not what is known")
        token = next_token(history, adapter, draw.seed, draw.barred)
        wanted = None if draw.logprobs is None else logprob(token)
        return Drawn(token, wanted, prompt)

    def _read(self, chunk: Chunk, position: int, adapter: str) -> int:
        cells = self.memory.cells.get(chunk.pages[position // self.page_tokens])
        cell = cells.get(position % self.page_tokens) if isinstance(cells, dict) else None
        if cell is None or (cell.position, cell.adapter) != (position, adapter):
            raise Corrupted(f"position {position} of sequence {chunk.sequence} holds {cell}")
        return cell.token


def logprob(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token))


@dataclass
class Parts:
    """A built engine of fakes, and the fakes themselves."""

    runner: FakeRunner
    memory: FakeMemory
    host: FakeHost
    built: Built[Packed]


def build(
    *,
    num_pages: int = 32,
    page_tokens: int = 4,
    max_model_len: int = 64,
    eos: frozenset[int] = frozenset({EOS}),
    store: bool = True,
) -> Parts:
    memory, host = FakeMemory(), FakeHost()
    runner = FakeRunner(page_tokens, memory)
    built = Built(
        runner=runner,
        memory=memory,
        base=BASE,
        num_pages=num_pages,
        max_model_len=max_model_len,
        eos=eos,
        adapters=host if store else None,
    )
    return Parts(runner, memory, host, built)
