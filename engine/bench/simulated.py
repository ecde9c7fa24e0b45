"""An engine whose passes take a simulated time and compute nothing: scheduling alone, exactly
repeatable, hours in seconds. Needs no torch.
"""

from dataclasses import dataclass, field

from engine.built import Built
from engine.config import EngineConfig
from engine.core import Core
from engine.counts import CountRecord
from engine.handoff.news import PageTransfer, Wire
from engine.metrics import EngineMetrics
from engine.protocol import BaseInfo
from engine.step import Drawn, Masks, StepPlan, StepResult

TOKEN = 5  # of every draw
BASE = BaseInfo("simulated", "Simulated", 50_000, "none", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a pass: its own, and for each row that decodes and each prompt token."""

    name: str
    fixed_s: float
    decode_s: float
    prompt_s: float

    def seconds(self, plan: StepPlan) -> float:
        decodes = sum(chunk.draw is not None and len(chunk.tokens) == 1 for chunk in plan.chunks)
        prompts = sum(len(chunk.tokens) for chunk in plan.chunks) - decodes
        return self.fixed_s + self.decode_s * decodes + self.prompt_s * prompts


# Measured: the demo on two CPU cores, and an 8B model of 4 bits on an H200.
CPU = Costs(name="cpu", fixed_s=0.072, decode_s=0.0027, prompt_s=0.0018)
GPU = Costs(name="gpu", fixed_s=0.003, decode_s=0.000058, prompt_s=0.000026)


@dataclass
class SimulatedClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True)
class _Done:
    result: StepResult

    def draw(self, masks: Masks) -> None:
        raise NotImplementedError

    def wait(self) -> StepResult:
        return self.result


@dataclass(slots=True)
class SimulatedRunner:
    clock: SimulatedClock
    costs: Costs

    def launch(self, plan: StepPlan) -> _Done:
        self.clock.sleep(self.costs.seconds(plan))
        return _Done(StepResult([Drawn(TOKEN if chunk.draw else None) for chunk in plan.chunks]))


@dataclass(frozen=True, slots=True)
class NoAdapters:
    """No adapter is accepted without a store."""

    def pages_for(self, packed: None) -> int:
        raise NotImplementedError

    def place(self, row: int, packed: None, pages: object) -> None:
        raise NotImplementedError

    def clear(self, row: int) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class SimulatedEngine:
    config: EngineConfig
    costs: Costs
    pages: int
    max_step_s: float | None = None
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    longest: int = 8192  # tokens of a sequence
    transfer: PageTransfer | None = None
    wire: Wire | None = None  # of handoffs
    core: Core[None] = field(init=False)

    def __post_init__(self) -> None:
        built: Built[None] = Built(
            runner=SimulatedRunner(self.clock, self.costs),
            memory=NoAdapters(),
            base=BASE,
            num_pages=self.pages,
            max_model_len=self.longest,
            transfer=self.transfer,
            eos=frozenset(),
            adapters=None,
            max_step_s=self.max_step_s,
        )
        self.core = Core(
            self.config,
            built,
            boot="simulated",
            record=CountRecord(None),
            metrics=EngineMetrics(self.pages, clock=self.clock),
            clock=self.clock,
            wire=self.wire,
        )
