"""Runs plans: StepPlan -> tensors -> forward pass -> draws -> StepResult.

``build_runner`` is the composition root of everything that needs torch.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import BaseUnreadable
from adapters.host_cache import HostCache
from adapters.pack import PackedAdapter
from adapters.store import AdapterStore
from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.adapter_vectors import BaseVectors
from engine.batch import BatchBuilder, HeadLayout, StepInputs
from engine.built import Built
from engine.checkpoint import Checkpoint
from engine.config import EngineConfig
from engine.errors import CheckpointInvalid, ConfigError
from engine.graphs import DecodeGraphs
from engine.layers.lora import LoraPass
from engine.layers.stacked import Stacks
from engine.loading import Placement, Weights
from engine.memory import PoolSize
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.outer import OuterPass
from engine.page_memory import PageMemory
from engine.precision import choose_device, choose_dtype
from engine.profile import run_largest_pass
from engine.protocol import BaseInfo, TokenLogprobs
from engine.sampling import Drawing, TopLogprobs, draw
from engine.step import Drawn, Pending, StepPlan, StepResult

STEP_S = 0.025  # of a pass with decodes on CUDA: others' tokens stay even while prompts enter
PROMPT_ROWS = 256  # rows of logits at a time for prompt log-probabilities
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassPending:
    """A launched pass. On CUDA ``wait`` is where the host meets the device."""

    plan: StepPlan
    heads: HeadLayout
    drawing: Drawing | None
    prompts: Sequence[Sequence[tuple[TopLogprobs, int]]]  # per prompt: tiles and their rows

    def wait(self) -> StepResult:
        drawn = [Drawn()] * len(self.plan.chunks)
        if self.drawing is not None:
            for (chunk, _), result in zip(self.heads.draws, self.drawing.read(), strict=True):
                drawn[chunk] = result
        for (chunk, _, _), tiles in zip(self.heads.prompts, self.prompts, strict=True):
            drawn[chunk] = replace(drawn[chunk], prompt_logprobs=self._read(chunk, tiles))
        return StepResult(drawn)

    def _read(self, chunk: int, tiles: Sequence[tuple[TopLogprobs, int]]) -> list[TokenLogprobs]:
        wanted = self.plan.chunks[chunk].prompt_logprobs or 0
        return [fact for tile, rows in tiles for fact in tile.read([wanted] * rows)]


class ModelRunner:
    """Computes plans in the order they are launched. Belongs to the engine loop's thread."""

    def __init__(
        self, model: Decoder, memory: PageMemory, table: AdapterTable, builder: BatchBuilder
    ) -> None:
        self._model, self._memory, self._table, self._builder = model, memory, table, builder
        stackable = memory.pool.device.type == "cpu" and not model.deterministic
        self._stacks = Stacks(table, memory.flat) if stackable else None
        self._graphs: DecodeGraphs | None = None

    @torch.inference_mode()
    def capture(self, config: EngineConfig, max_pages: int) -> None:
        """Capture the decode passes; from then on they are replayed. CUDA only."""
        self._graphs = DecodeGraphs(
            self._logits,
            self._table,
            max_seqs=config.max_num_seqs,
            max_pages=max_pages,
            page_tokens=config.page_tokens,
            device=self._memory.flat.device,
        )
        self._graphs.capture()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        if not plan.chunks:
            return Nothing()
        self._memory.copy(plan.copies)
        outer = self._outer(plan)
        if (
            self._graphs is not None
            and outer is None
            and (logits := self._graphs.run(plan)) is not None
        ):
            draws = [chunk.draw for chunk in plan.chunks if chunk.draw is not None]
            return PassPending(plan, HeadLayout.one_each(len(draws)), draw(logits, draws), ())
        inputs = self._builder.build(plan)
        hidden = self._model(inputs, self._memory.layers, self._lora(inputs, outer))
        draws = [chunk.draw for chunk in plan.chunks if chunk.draw is not None]
        owners = [chunk.adapter for chunk in plan.chunks if chunk.draw is not None]
        drawing = draw(self._head(hidden[: len(draws)], outer, owners), draws) if draws else None
        return PassPending(plan, inputs.heads, drawing, self._prompts(plan, inputs, hidden, outer))

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

    def _logits(self, inputs: StepInputs) -> torch.Tensor:
        return self._model.head(self._model(inputs, self._memory.layers, self._lora(inputs)))

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
        inputs: StepInputs,
        hidden: torch.Tensor,
        outer: OuterPass | None,
    ) -> list[list[tuple[TopLogprobs, int]]]:
        """Per prompt that asks: the log-probability of each token given those before it."""
        found = []
        for chunk, first, count in inputs.heads.prompts:
            tokens = torch.tensor(plan.chunks[chunk].tokens[1:], device=hidden.device)
            wanted = plan.chunks[chunk].prompt_logprobs or 0
            tiles = []
            for at in range(0, count, PROMPT_ROWS):
                end = min(at + PROMPT_ROWS, count)
                owners = [plan.chunks[chunk].adapter] * (end - at)
                logits = self._head(hidden[first + at : first + end], outer, owners)
                tiles.append((TopLogprobs.of(logits, tokens[at:end], wanted), end - at))
            found.append(tiles)
        return found


class Nothing:
    """The outcome of an empty plan."""

    def wait(self) -> StepResult:
        return StepResult([])


def build_runner(config: EngineConfig) -> Built[PackedAdapter]:
    """Load the model and lay out its memory.

    Raises ConfigError, CheckpointInvalid or OutOfMemory, each with what to change.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    checkpoint = Checkpoint(config.model)
    spec = ModelSpec.read(checkpoint.config, checkpoint.json("generation_config.json"))
    _check_length(config, spec)
    device = choose_device(config.device)
    choice = choose_dtype(config.dtype, spec, device)
    log.info("computing in %s on %s: %s", choice.dtype, device, choice.reason)
    weights = Weights(checkpoint, spec, Placement(device, choice.dtype, config.deterministic))
    with torch.inference_mode():
        model = Decoder(weights, positions=config.max_model_len or spec.max_position)
    weights.finish()
    return _compose(config, model, weights)


def _compose(config: EngineConfig, model: Decoder, weights: Weights) -> Built[PackedAdapter]:
    spec, place = model.spec, weights.place
    builder = BatchBuilder(config.page_tokens, place.device)

    def memory_of(pages: int) -> PageMemory:
        return PageMemory(
            spec, config.page_tokens, num_pages=pages, dtype=place.dtype, device=place.device
        )

    def largest_pass() -> None:
        table = AdapterTable(spec, place.device)
        run_largest_pass(ModelRunner(model, memory_of(1), table, builder), table, spec, config)

    size = PoolSize(config, spec, place.dtype)
    pages = size.pages(place.device, largest_pass)
    memory, table = memory_of(pages), AdapterTable(spec, place.device)
    base = _base_spec(config.model)
    runner = ModelRunner(model, memory, table, builder)
    if place.device.type == "cuda" and not config.enforce_eager:
        runner.capture(config, -(-size.max_model_len(pages) // config.page_tokens))
    return Built(
        runner=runner,
        memory=AdapterMemory(spec, memory, table, BaseVectors(model.linears(), place.device)),
        base=BaseInfo(
            fingerprint=base.fingerprint,
            architecture=spec.architecture,
            vocab_size=spec.vocab_size,
            quantization=weights.quantization,
            dtype=str(place.dtype).removeprefix("torch."),
        ),
        num_pages=pages,
        max_model_len=size.max_model_len(pages),
        eos=frozenset(spec.eos_tokens),
        adapters=_host_cache(config, base, place.dtype),
        max_step_s=STEP_S if place.device.type == "cuda" else None,
    )


def _check_length(config: EngineConfig, spec: ModelSpec) -> None:
    if config.max_model_len is not None and config.max_model_len > spec.max_position:
        raise ConfigError(
            f"max_model_len={config.max_model_len} exceeds the model's own {spec.length_limit}"
        )


def _base_spec(path: str) -> BaseSpec:
    try:
        return BaseSpec.from_checkpoint(path)
    except BaseUnreadable as error:
        raise CheckpointInvalid(str(error)) from error


def _host_cache(config: EngineConfig, base: BaseSpec, dtype: torch.dtype) -> HostCache | None:
    if config.adapter_store is None:
        return None
    return HostCache(AdapterStore(config.adapter_store), base, dtype, config.host_cache_bytes)
