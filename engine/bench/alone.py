"""An engine without sockets: the loop, scheduler and runner of serving, driven pass by pass.

Adapters are made in host memory from their digest, so that a benchmark waits for no disk.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from adapters.base_spec import BaseSpec
from adapters.narrow import Narrow, rounded
from adapters.pack import Factor, PackedAdapter
from engine.adapter_layout import LaidOut
from engine.adapter_memory import AdapterMemory
from engine.bench.poured import PouredHost
from engine.built import Built
from engine.collector import begin_serving
from engine.composition import build_runner
from engine.config import EngineConfig, HeadDtype
from engine.core import NO_GATEWAY, Core, Heard
from engine.counts import CountRecord
from engine.handoff.wire import tcp_wire
from engine.metrics import EngineMetrics
from engine.protocol import AdapterRef, Output, Refused, Sampling, Step, Submit, TokenLogprobs
from engine.speculation.proposer import Proposer
from engine.speculation.speculation import Judge
from engine.team.adapters import TeamAdapters

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GREEDY = Sampling(temperature=0.0)


class Script(Proposer, Judge, Protocol):
    """Drafts that a benchmark makes, and when to verify some."""


class BenchmarkRefused(Exception):
    """The engine did not do the work that was to be measured."""


class MadeAdapters:
    """Random adapters, one per digest; the same digest, the same values.

    A digest ``made-RANK-NUMBER`` names the rank.
    """

    def __init__(self, base: BaseSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._base, self._dtype, self._device = base, dtype, device
        self._made: dict[str, PackedAdapter] = {}

    def packed(self, digest: str) -> PackedAdapter:
        if digest not in self._made:
            self._made[digest] = self._make(digest)
        return self._made[digest]

    def _make(self, digest: str) -> PackedAdapter:
        rank, number = (int(part) for part in digest.split("-")[1:])
        draw = torch.Generator(device=self._device).manual_seed(number)
        factors: dict[tuple[int, str], Factor] = {}
        for layer in range(self._base.num_layers):
            for module in MODULES:
                inputs, outputs = self._base.shape_of(module)
                a = self._normal(draw, rank, inputs) * inputs**-0.5
                b = self._normal(draw, outputs, rank) * (0.2 * rank**-0.5)
                factors[layer, module] = Factor(*(t.to(self._dtype).cpu() for t in (a, b)))
        return PackedAdapter(digest, rank, factors)

    def _normal(self, draw: torch.Generator, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=draw, device=self._device)


class MadeHost:
    """A host cache of made adapters, ready when they are asked for."""

    def __init__(self, made: MadeAdapters, lay_out: Callable[[PackedAdapter], LaidOut]) -> None:
        self._made, self._lay_out = made, lay_out
        self._laid: dict[str, LaidOut] = {}

    def request(self, digest: str) -> None:
        if digest not in self._laid:
            self._laid[digest] = self._lay_out(self._made.packed(digest))

    def poll(self, digest: str) -> LaidOut | Exception | None:
        return self._laid.get(digest)

    def holds(self, digest: str) -> bool:
        return digest in self._laid

    def drop(self, digest: str) -> None:
        self._laid.pop(digest, None)


def adapter_ref(number: int, rank: int) -> AdapterRef:
    return AdapterRef(f"made-{rank}-{number}", rank)


@dataclass(slots=True)
class Requests:
    """What came of the requests of one run."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)

    def hear(self, output: Output) -> None:
        self.outputs.setdefault(output.request, []).extend(output.tokens)
        self.logprobs.setdefault(output.request, []).extend(output.logprobs or ())
        if output.finish is not None:
            if output.error:
                raise BenchmarkRefused(f"{output.request}: {output.error}")
            self.finished.add(output.request)


class LoneEngine:
    """Belongs to one thread. ``pour``: adapters that host memory has room for, made in a moment
    (``PouredHost``); without it they are made one by one, and all are kept."""

    def __init__(
        self, config: EngineConfig, *, pour: int | None = None, script: Script | None = None
    ) -> None:
        """``script``: drafts in the place of what the config's proposer would make."""
        built = build_runner(config)
        self.narrow = config.kv_cache_dtype.narrow
        self.narrow_head = config.head_dtype == HeadDtype.INT8
        self._codes = config.adapter_dtype.codes
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        wire = tcp_wire(config, built)
        base = BaseSpec.from_checkpoint(config.model)
        dtype = getattr(torch, built.base.dtype)
        self._made = MadeAdapters(base, dtype, self.device)
        memory = built.memory
        assert isinstance(memory, AdapterMemory | TeamAdapters)
        self._host: MadeHost | PouredHost = (
            MadeHost(self._made, memory.lay_out)
            if pour is None
            else PouredHost(lambda name: memory.lay_out(self._made.packed(name)), pour)
        )
        self.built: Built[LaidOut] = replace(
            built, adapters=self._host, proposer=script or built.proposer
        )
        self.core = Core(
            config,
            self.built,
            boot="bench",
            record=CountRecord(None),
            metrics=EngineMetrics(self.built.num_pages),
            entropy=random.Random(0),  # noqa: S311
            judge=script,
            wire=wire,
        )
        self.wire = wire
        if wire is not None:
            wire.start(lambda news: self.core.inbox.put(Heard(NO_GATEWAY, news), force=True))
        begin_serving()

    def kept(self, digest: str) -> PackedAdapter:
        """What remains of a made adapter where the engine keeps it in 8 bits, or all of it."""
        packed = self._made.packed(digest)
        return packed if self._codes is None else rounded(packed, Narrow(self._codes))

    def fetch(self, refs: Iterable[AdapterRef]) -> None:
        """Have adapters in host memory."""
        for ref in refs:
            self._host.request(ref.digest)

    def submit(
        self,
        name: str,
        tokens: list[int],
        max_tokens: int,
        adapter: AdapterRef | None = None,
        *,
        grammar: str | None = None,
        sampling: Sampling = GREEDY,
        logprobs: int | None = None,
    ) -> None:
        """Raises BenchmarkRefused."""
        submit = Submit(
            name, "bench", tokens, max_tokens, sampling=sampling, adapter=adapter, ignore_eos=True,
            grammar=grammar, logprobs=logprobs,
        )  # fmt: skip
        if not self.core.inbox.put(Heard(0, submit)):
            raise BenchmarkRefused("the engine's inbox is full")

    def passes(self, requests: Requests) -> Iterator[float]:
        """Seconds of each pass until nothing is open. Outputs go to ``requests``.

        Raises BenchmarkRefused.
        """
        while True:
            start = time.perf_counter()
            computed = self.core.step()
            seconds = time.perf_counter() - start
            for said in self.core.outbox.take():
                if isinstance(said.message, Refused):
                    raise BenchmarkRefused(said.message.detail)
                if isinstance(said.message, Step):
                    for output in said.message.outputs:
                        requests.hear(output)
            if computed:
                yield seconds
            elif not self.core.book:
                return

    def random_prompt(self, length: int, seed: int) -> list[int]:
        draw = random.Random(seed)  # noqa: S311
        return [draw.randrange(10, self.built.base.vocab_size - 10) for _ in range(length)]
