"""What computes in one process, a whole model or a member's part: laid out, tried and captured."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.adapter_vectors import BaseVectors
from engine.batch import BatchBuilder
from engine.bench.setting import known_device
from engine.compilers import Compilers
from engine.compiling import CompileCount
from engine.config import EngineConfig
from engine.facilities import host_swap
from engine.host_pages import HostPages
from engine.images import ImageVectors
from engine.memory import PoolSize
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.page_size import ITEM, page_elements, pages_of_tokens
from engine.placement import A_ROWS
from engine.plan import Memory, Wish, describe, divide
from engine.rehearsal import Needs, Rehearsal, Stage
from engine.runner import ModelRunner
from engine.source import Loaded
from engine.speculation.proposer import Proposer
from engine.speculation.proposers import make_proposer
from engine.speculation.warm_drafts import DRAFTS, PROMPT, warm_drafts
from engine.stored_weights import of_checkpoint
from engine.team.member import Member
from engine.timeline import Timeline
from kernels.lora_codes import LoraCodes
from kernels.segments import SEGMENT_TILES

RESERVED_ROWS = 2048  # of the adapter table, before graphs are captured over it
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """What a start is helped by and tells."""

    timeline: Timeline
    compilers: Compilers | None


@dataclass(frozen=True, slots=True)
class Part:
    """What computes, of a whole model or of a member's part."""

    pages: int
    size: PoolSize
    memory: PageMemory
    runner: ModelRunner
    adapters: AdapterMemory
    swap: HostPages | None
    proposer: Proposer | None
    compiled: CompileCount


def make_part(config: EngineConfig, loaded: Loaded, member: Member, start: Start) -> Part:
    model, images = loaded.model, loaded.images
    spec, place = model.spec, loaded.weights.place
    tiles = SEGMENT_TILES if place.device.type == "cuda" else ()
    builder = BatchBuilder(config.page_tokens, place.device, tiles=tiles)

    def memory_of(pages: int) -> PageMemory:
        return PageMemory(
            spec,
            config.page_tokens,
            num_pages=pages,
            dtype=place.dtype,
            device=place.device,
            narrow=config.kv_cache_dtype.narrow,
        )

    proposer, watcher = make_proposer(config, model, place) if member.leads else (None, None)
    size = PoolSize(config, spec, place.dtype, beside=watcher.page_bytes if watcher else 0)
    pages = member.least(_pages(config, size, model, memory_of, builder, images, start))
    if watcher is not None:
        watcher.allocate(pages)
        if place.device.type == "cuda" and config.page_tokens > PROMPT + DRAFTS:
            warm_drafts(
                watcher, hidden=spec.hidden_size, dtype=place.dtype, device=place.device,
                most=config.max_num_seqs,
            )  # fmt: skip
    memory = memory_of(pages)
    table = AdapterTable(spec, place.device, _codes(config))
    if table.codes is not None:
        log.info("adapters in %s: rounded when they are loaded", table.codes)
    runner = ModelRunner(
        model, memory, table, builder, max_seqs=config.max_num_seqs,
        max_tokens=config.max_num_batched_tokens, max_drafts=config.drafts, images=images,
        watcher=watcher, lead=member.lead,
    )  # fmt: skip
    compiled = CompileCount()
    if place.device.type == "cuda":
        table.reserve(rows=min(RESERVED_ROWS, pages), rank=A_ROWS)
        if not config.enforce_eager:
            runner.capture(pages_of_tokens(size.max_model_len(pages), config.page_tokens))
            start.timeline.mark("captured passes")
        compiled.begin()
    vectors = BaseVectors(model.linears(), place.device, member.group)
    return Part(
        pages=pages,
        size=size,
        memory=memory,
        runner=runner,
        adapters=AdapterMemory(spec, memory, table, vectors, shard=member.shard),
        swap=host_swap(config, memory),
        proposer=proposer,
        compiled=compiled,
    )


def _pages(
    config: EngineConfig,
    size: PoolSize,
    model: Decoder,
    memory_of: Callable[[int], PageMemory],
    builder: BatchBuilder,
    images: ImageVectors | None,
    start: Start,
) -> int:
    """Pages of the pool; on CUDA after every kind of pass was tried."""
    device = model.embedding.table.device
    if device.type != "cuda":
        return size.pages(device, 0)
    weights = torch.cuda.memory_allocated()
    needs = _rehearse(config, model, memory_of(1), builder, start)
    sight = images.rehearse() if images else 0
    pages = size.pages(device, needs.passes + needs.graphs + sight)
    log.info("memory\n%s", _plan(config, model.spec, weights, pages))
    return pages


def _plan(config: EngineConfig, spec: ModelSpec, weights: int, pages: int) -> str:
    """What the memory is for, as ``loratorio plan`` says it; beside the pool, what is measured."""
    name, total = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1]
    budget = int(config.gpu_memory_utilization * total)
    narrow = config.kv_cache_dtype.narrow
    pool = pages * page_elements(spec, config.page_tokens, narrow=narrow) * ITEM
    wish = Wish(
        gpu=name,
        context=min(config.max_model_len or spec.max_position, pages * config.page_tokens),
        adapters=0 if config.adapter_store is None else 1,
        rank=A_ROWS,
        kv_cache_dtype=config.kv_cache_dtype,
        adapter_dtype=config.adapter_dtype,
        page_tokens=config.page_tokens,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        utilization=config.gpu_memory_utilization,
        members=config.tensor_parallel_size,
    )
    memory = Memory(budget, weights, budget - weights - pool)
    found = divide(
        spec, wish, memory, known_device(name), of_checkpoint(Path(config.model))[1].precision
    )
    return describe(found, wish, measured=True)


def _rehearse(
    config: EngineConfig,
    model: Decoder,
    memory: PageMemory,
    builder: BatchBuilder,
    start: Start,
) -> Needs:
    device = memory.pool.device
    longest = pages_of_tokens(config.max_model_len or model.spec.max_position, config.page_tokens)

    def stage(layers: int | None) -> Stage:
        part = model.shallow(layers) if layers else model
        table = AdapterTable(model.spec, device, _codes(config))
        runner = ModelRunner(
            part, memory, table, builder, max_seqs=config.max_num_seqs,
            max_tokens=config.max_num_batched_tokens, max_drafts=config.drafts,
        )  # fmt: skip
        return Stage(runner, table, lambda: runner.graphs(longest))

    rehearsal = Rehearsal(stage, model.spec, config)
    return rehearsal.play(device, start.compilers, start.timeline)


def _codes(config: EngineConfig) -> LoraCodes | None:
    codes = config.adapter_dtype.codes
    return None if codes is None else LoraCodes(codes)
