"""A model on the CPU with its pool and adapter table, driven a plan at a time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from adapters.pack import PackedAdapter
from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.adapter_vectors import BaseVectors
from engine.batch import BatchBuilder
from engine.checkpoint import Checkpoint
from engine.images import ImageVectors
from engine.loading import Placement, Weights
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.models.tower import Tower
from engine.page_memory import PageMemory
from engine.protocol import Sampling
from engine.runner import ModelRunner
from engine.seeing import Seeing
from engine.step import NO_ADAPTER, Chunk, Draw, Drawn, Masks, StepPlan
from engine.team.member import Member
from engine.warm_plans import open_masks
from kernels.lora_codes import LoraCodes

GREEDY = Sampling(temperature=0.0)


class Rig:
    def __init__(
        self,
        path: Path,
        *,
        dtype: torch.dtype = torch.float32,
        deterministic: bool = False,
        page_tokens: int = 16,
        pages: int = 96,
        narrow: bool = False,
        narrow_head: bool = False,
        codes: LoraCodes | None = None,
        member: Member | None = None,
    ) -> None:
        """``member``: of a team, of whose model this has a part."""
        member = member or Member()
        checkpoint, cpu = Checkpoint(path), torch.device("cpu")
        whole = ModelSpec.read(checkpoint.config)
        self.spec = whole if member.shard is None else member.shard.spec
        place = Placement(cpu, dtype, deterministic, narrow_head, member.shard)
        weights = Weights(checkpoint, self.spec, place)
        self.model = Decoder(weights, positions=self.spec.max_position, group=member.group)
        self.seeing = Seeing.of(path)
        self.images = None
        if self.seeing is not None:
            tower = Tower(weights, checkpoint.whole_config, self.seeing)
            self.images = ImageVectors(tower, self.seeing, cpu)
        weights.finish()
        self.page_tokens = page_tokens
        self.memory = PageMemory(
            self.spec, page_tokens, num_pages=pages, dtype=dtype, device=cpu, narrow=narrow
        )
        self.table = AdapterTable(self.spec, cpu, codes)
        vectors = BaseVectors(self.model.linears(), cpu, member.group)
        self.adapters = AdapterMemory(
            self.spec, self.memory, self.table, vectors, shard=member.shard
        )
        self.builder = BatchBuilder(page_tokens, cpu)
        self.runner = ModelRunner(
            self.model, self.memory, self.table, self.builder, images=self.images
        )
        self._free = list(range(pages))[::-1]  # not in order: a page's number is not its place

    def pages(self, tokens: int) -> list[int]:
        return self.take(-(-tokens // self.page_tokens))

    def take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def load(self, row: int, packed: PackedAdapter) -> list[int]:
        laid = self.adapters.lay_out(packed)
        pages = self.take(laid.pages)
        self.adapters.place(row, laid, pages)
        return pages

    def launch(self, chunks: Sequence[Chunk], masks: Masks | None = None) -> Sequence[Drawn]:
        """``masks`` where a draw is masked; by default they bar nothing."""
        plan = StepPlan(chunks)
        pending = self.runner.launch(plan)
        if masks := masks or open_masks(plan, self.spec.vocab_size):
            pending.draw(masks)
        return pending.wait().drawn

    @torch.inference_mode()
    def logits(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Of every row of the plan: [T, V]."""
        asking = [with_prompt_rows(chunk) for chunk in chunks]
        plan = StepPlan(asking)
        inputs, outer = self.builder.build(plan), self.runner._outer(plan)
        inputs = replace(inputs, changed=outer is not None)
        if self.images is not None:
            inputs = replace(inputs, images=self.images.rows(plan.chunks))
        hidden = self.model(inputs, self.memory.layers, self.runner._lora(inputs, outer))
        owners = [chunk.adapter for chunk in asking]
        for number, _, count in inputs.heads.prompts:
            owners += [asking[number].adapter] * count
        logits = self.runner._head(hidden, outer, owners)
        ordered = torch.empty_like(logits)
        ordered[inputs.head_rows] = logits
        return ordered


def with_prompt_rows(chunk: Chunk) -> Chunk:
    return Chunk(
        sequence=chunk.sequence,
        tokens=chunk.tokens,
        start=chunk.start,
        pages=chunk.pages,
        adapter=chunk.adapter,
        active_from=chunk.active_from,
        draw=draw(),
        prompt_logprobs=0,
        images=chunk.images,
    )


def draw(sampling: Sampling = GREEDY, **facts: object) -> Draw:
    given = {"seed": 0, "position": 0, "prompt": (), "output": ()} | facts
    return Draw(sampling=sampling, **given)  # type: ignore[arg-type]


def chunk(
    tokens: Sequence[int],
    pages: Sequence[int],
    *,
    start: int = 0,
    adapter: int = NO_ADAPTER,
    draw: Draw | None = None,
    **facts: object,
) -> Chunk:
    return Chunk(
        sequence=pages[0] if pages else 0,
        tokens=tokens,
        start=start,
        pages=pages,
        adapter=adapter,
        draw=draw,
        **facts,
    )
