"""One engine core on fakes, driven pass by pass in the test's own thread."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.core import Core, Gone, Heard
from engine.counts import CountRecord
from engine.handoff.news import Wire
from engine.metrics import EngineMetrics
from engine.protocol import (
    AdapterRef,
    Cancel,
    Finish,
    Grant,
    Load,
    Output,
    Refused,
    Sampling,
    Step,
    Submit,
    ToGateway,
)
from engine.vllm_metrics import About
from tests.fakes.clock import FakeClock
from tests.fakes.runner import Packed, Parts, build

DEFAULTS = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "page_tokens": 4}


def config(**changes: object) -> EngineConfig:
    return EngineConfig(model="fake", **{**DEFAULTS, **changes})  # type: ignore[arg-type]


def submit(
    request: str = "r1",
    tokens: list[int] | None = None,
    max_tokens: int = 4,
    *,
    adapter: str = "",
    invocation: Sequence[int] = (),
    tenant: str = "t",
    ignore_eos: bool = True,
    seed: int | None = 7,
    **more: object,
) -> Submit:
    fields: dict[str, object] = {"sampling": Sampling(seed=seed), **more}
    ref = AdapterRef(adapter, 8, tuple(invocation)) if adapter else None
    return Submit(
        request, tenant, [5, 6, 7] if tokens is None else tokens, max_tokens,
        adapter=ref, ignore_eos=ignore_eos, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


@dataclass
class Harness:
    config: EngineConfig = field(default_factory=config)
    parts: Parts = field(default_factory=build)
    record: CountRecord = field(default_factory=lambda: CountRecord(None))
    wire: Wire | None = None

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.metrics = EngineMetrics(
            self.parts.built.num_pages,
            About(max_num_seqs=self.config.max_num_seqs),
            clock=self.clock,
        )
        self.core: Core[Packed] = Core(
            self.config,
            self.parts.built,
            boot="boot-1",
            record=self.record,
            metrics=self.metrics,
            clock=self.clock,
            entropy=random.Random(0),
            wire=self.wire,
        )
        self.said: list[tuple[int | None, ToGateway]] = []
        self.outputs: defaultdict[tuple[int, str], list[Output]] = defaultdict(list)
        self.refused: dict[tuple[int, str], Refused] = {}

    def tell(self, message: object, connection: int = 0) -> None:
        assert self.core.inbox.put(Heard(connection, message))  # type: ignore[arg-type]

    def submit(self, request: str = "r1", *more: object, connection: int = 0, **kw: object) -> None:
        self.tell(submit(request, *more, **kw), connection)  # type: ignore[arg-type]

    def cancel(self, request: str = "r1", connection: int = 0) -> None:
        self.tell(Cancel(request), connection)

    def grant(self, granted: int, request: str = "r1", connection: int = 0) -> None:
        self.tell(Grant(request, granted), connection)

    def gone(self, connection: int = 0) -> None:
        self.tell(Gone(), connection)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.core.step()
            self.core.seating.check()
            self.collect()

    def collect(self) -> None:
        for said in self.core.outbox.take():
            self.said.append((said.connection, said.message))
            if isinstance(said.message, Step):
                assert said.connection is not None
                for output in said.message.outputs:
                    self.outputs[said.connection, output.request].append(output)
            elif isinstance(said.message, Refused):
                assert said.connection is not None
                assert (said.connection, said.message.request) not in self.refused
                self.refused[said.connection, said.message.request] = said.message

    def run(self, steps: int = 500) -> None:
        """Step until nothing is open."""
        for _ in range(steps):
            self.step()
            if not self.core.book:
                return
        raise AssertionError(f"still open after {steps} steps")

    def tokens(self, request: str = "r1", index: int = 0, connection: int = 0) -> list[int]:
        outputs = self.outputs[connection, request]
        return [token for output in outputs if output.index == index for token in output.tokens]

    def terminals(self, request: str = "r1", connection: int = 0) -> list[Output]:
        return [output for output in self.outputs[connection, request] if output.finish]

    def finish(self, request: str = "r1", connection: int = 0) -> Finish:
        (terminal,) = self.terminals(request, connection)
        assert terminal.finish
        return terminal.finish

    @property
    def loads(self) -> list[Load]:
        return [message for _, message in self.said if isinstance(message, Load)]
