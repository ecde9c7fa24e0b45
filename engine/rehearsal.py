"""Before an engine on CUDA is ready: compile and run every kind of pass, and measure the largest.

Everything happens over a pool of one page and adapters that lie at its start: the values mean
nothing. What was compiled and loaded here stays; memory is given back once it was counted. Adapters
with gains or biases are few and take kernels of their own, which are compiled at their first use.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from engine.adapter_table import AdapterTable, SiteRow, site_shapes
from engine.compilers import Compilers
from engine.compiling import Ahead
from engine.config import EngineConfig
from engine.graphs import DecodeGraphs
from engine.mixed_graphs import MixedGraphs
from engine.models.spec import ModelSpec
from engine.page_size import ROOMY_RANK
from engine.placement import A_ROWS
from engine.step import Runner, StepPlan
from engine.timeline import Timeline
from engine.warm_plans import ADAPTERS, WarmPlans, open_masks

SHALLOW = 2  # layers
MARGIN = 1.15  # an allocator that has served passes of all sizes holds more than one pass needs


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that an engine takes beside its weights and pages."""

    passes: int
    graphs: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A runner over a table of its own; ``graphs`` makes uncaptured graphs of its passes."""

    runner: Runner
    table: AdapterTable
    graphs: Callable[[], tuple[DecodeGraphs, MixedGraphs | None, DecodeGraphs | None]]


class Rehearsal:
    """``stage`` sets one up over so many of the model's layers or one of each kind, None for all.

    Those are enough to meet every kernel, and quick. Which kernels an adapter takes does not
    depend on its rank.
    """

    def __init__(
        self, stage: Callable[[int | None], Stage], spec: ModelSpec, config: EngineConfig
    ) -> None:
        self._stage, self._spec, self._config = stage, spec, config
        self._plans = WarmPlans(config, config.max_model_len or spec.max_position)

    def play(self, device: torch.device, compilers: Compilers | None, timeline: Timeline) -> Needs:
        """Leaves nothing allocated."""
        with Ahead(device, compilers) as ahead:
            self._run(self._set(SHALLOW), self._plans.all())
        timeline.mark(f"{ahead.kernels} kernels")
        self._run(self._set(SHALLOW), self._plans.all())
        timeline.mark("rehearsed passes")
        whole = self._set(None)
        passes = _grown(device, lambda: self._launch(whole, self._plans.largest()))
        graphs = 0 if self._config.enforce_eager else self._measure_graphs(whole, device)
        timeline.mark("measured memory")
        return Needs(int(MARGIN * passes), graphs)

    def _set(self, layers: int | None) -> Stage:
        stage = self._stage(layers)
        for row in ADAPTERS:
            stage.table.write(row, _entry(self._spec, ROOMY_RANK))
        return stage

    @torch.inference_mode()
    def _run(self, stage: Stage, plans: Iterable[StepPlan]) -> None:
        for plan in plans:
            self._launch(stage, plan)
        if not self._config.enforce_eager:
            for graphs in stage.graphs():
                if graphs is not None:
                    graphs.warm()

    def _launch(self, stage: Stage, plan: StepPlan) -> None:
        pending = stage.runner.launch(plan)
        if masks := open_masks(plan, self._spec.vocab_size):
            pending.draw(masks)
        pending.wait()

    @torch.inference_mode()
    def _measure_graphs(self, whole: Stage, device: torch.device) -> int:
        """All of them, from the largest bucket of each kind and the next."""
        return sum(_measure(graphs, device) for graphs in whole.graphs() if graphs is not None)


def _measure(graphs: DecodeGraphs | MixedGraphs, device: torch.device) -> int:
    first = _grown(device, lambda: graphs.capture(0, 1))
    second = _grown(device, lambda: graphs.capture(1, 2))
    return int(graphs.nbytes + first + MARGIN * second * (graphs.buckets - 1))


def _grown(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes of the device that ``work`` takes at its most, whoever takes them."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    work()
    torch.cuda.synchronize(device)
    return max(free - torch.cuda.mem_get_info(device)[0], 0)  # the allocator keeps its peak


def _entry(spec: ModelSpec, rank: int) -> dict[str, SiteRow]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros((spec.num_layers, *shape), dtype=torch.int32)

    return {
        name: SiteRow(
            a_units=zeros(len(shape.slices), rank // A_ROWS),
            b_units=zeros(shape.blocks),
            ranks=zeros(len(shape.slices)) + rank,
        )
        for name, shape in site_shapes(spec).items()
    }
