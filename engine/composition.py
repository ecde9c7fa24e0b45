"""Loads a model, lays out its memory, makes it ready: composes everything that needs torch."""

import gc
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid, BaseUnreadable, StoreUnusable
from adapters.host_cache import HostCache
from adapters.manifest import AdapterManifest
from adapters.narrow import Narrow
from adapters.pack import PackedAdapter, pack
from adapters.stores import Store, open_store
from engine.adapter_layout import LaidOut
from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.adapter_vectors import BaseVectors
from engine.batch import BatchBuilder
from engine.bench.setting import known_device
from engine.built import Built
from engine.checkpoint import Checkpoint
from engine.compilers import Compilers
from engine.compiling import CompileCount
from engine.config import Device, Dtype, EngineConfig, HeadDtype
from engine.errors import AdapterUnusable, CheckpointInvalid, ConfigError, EngineError
from engine.handoff.pages import TransferPages
from engine.host_pages import HostPages
from engine.images import ImageVectors
from engine.loading import Placement, Weights
from engine.matcher import Grammars
from engine.memory import PoolSize
from engine.mixed_graphs import BUCKETS
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.models.tower import Tower
from engine.page_memory import PageMemory
from engine.page_size import ITEM, page_elements, pages_of_tokens
from engine.placement import A_ROWS
from engine.plan import Memory, Wish, describe, divide
from engine.precision import choose_device, choose_dtype
from engine.protocol import BaseInfo
from engine.references import References, Rounding
from engine.rehearsal import Needs, Rehearsal, Stage
from engine.runner import ModelRunner
from engine.seeing import Seeing
from engine.speculation.proposer import Proposer
from engine.speculation.proposers import make_proposer
from engine.speculation.warm_drafts import DRAFTS, PROMPT, warm_drafts
from engine.stored_weights import SIGHT, of_checkpoint
from engine.swap import PageSwap
from engine.team.adapters import TeamAdapters, TeamPages
from engine.team.follower import Follower, Pantry
from engine.team.group import Group
from engine.team.lead import Lead
from engine.team.member import Member, device_of
from engine.team.orders import AnyOrder, AnyWord, Begin, Ready
from engine.team.shard import Shard
from engine.team.supply import Keep, Kept
from engine.team.wire import Wire
from engine.timeline import Timeline
from kernels.lora_codes import LoraCodes
from kernels.segments import SEGMENT_TILES

STEP_S = 0.025  # of a pass with decodes on CUDA: others' tokens stay even while prompts enter
MASK_THREADS = 8
LEAST_SLOTS = 2  # for pages on their way: one each way
RESERVED_ROWS = 2048  # of the adapter table, before graphs are captured over it
ADAPTER_CACHE = "adapter-cache"  # in the data directory: copies of what is stored elsewhere
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Source:
    """What a model is read from, and where and how it will compute."""

    checkpoint: Checkpoint
    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, config: EngineConfig, member: int) -> "_Source":
        """Raises ConfigError or CheckpointInvalid."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        checkpoint = Checkpoint(config.model)
        generation = checkpoint.json("generation_config.json")
        spec = ModelSpec.read(checkpoint.config, generation, stored=checkpoint.dtype)
        _check_length(config, spec)
        device = device_of(member, config, choose_device(config.device))
        choice = choose_dtype(config.dtype, spec, device)
        log.info("computing in %s on %s: %s", choice.dtype, device, choice.reason)
        return cls(checkpoint, spec, device, choice.dtype)


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: Decoder
    weights: Weights
    images: ImageVectors | None


@dataclass(frozen=True, slots=True)
class _Start:
    """What a start is helped by and tells."""

    timeline: Timeline
    compilers: Compilers | None


@dataclass(frozen=True, slots=True)
class _Part:
    """What computes, of a whole model or of a member's part."""

    pages: int
    size: PoolSize
    memory: PageMemory
    runner: ModelRunner
    adapters: AdapterMemory
    swap: HostPages | None
    proposer: Proposer | None
    compiled: CompileCount


def build_runner(config: EngineConfig, timeline: Timeline | None = None) -> Built[LaidOut]:
    """Load the model and lay out its memory, on this and all other members of its team.

    Raises ConfigError, CheckpointInvalid, OutOfMemory or MemberLost, each with what to change.
    """
    timeline = timeline or Timeline()
    timeline.mark("imports")
    size, source = config.tensor_parallel_size, _Source.of(config, 0)
    timeline.mark("opened checkpoint and device")
    if size == 1:
        return _built(config, source, Member(), timeline)
    shard = Shard(0, size, source.spec)
    chosen = _chosen(config, source)
    lead = Lead(chosen)
    try:
        lead.await_ready()
        group = _joined(config, lead.meeting, 0, source)
        return _built(chosen, source, Member(group, shard, lead), timeline)
    except EngineError:
        lead.close()
        raise
    except Exception as error:
        lost = lead.lost(error)
        lead.close()
        raise lost from error


def build_follower(
    begin: Begin, wire: Wire[AnyOrder, AnyWord], supply: Wire[Keep, Kept]
) -> Follower:
    """Load a member's part and lay out its memory, in step with the lead."""
    config, number = begin.config, begin.member
    source = _Source.of(config, number)
    shard = Shard(number, config.tensor_parallel_size, source.spec)
    wire.send(Ready())
    group = _joined(config, Path(begin.meeting), number, source)
    member = Member(group, shard)
    with _compilers(config, source.device) as compilers:
        start = _Start(Timeline(), compilers)
        part = _part(config, _load(config, source, member), member, start)
    pantry = Pantry(supply, part.adapters.lay_out)
    pantry.start(source.device)
    gc.collect()
    gc.freeze()  # as in an engine that serves
    return Follower(wire, part.runner, part.memory, part.adapters, pantry, part.swap)


def _joined(config: EngineConfig, meeting: Path, member: int, source: _Source) -> Group:
    """In deterministic mode sums of few rows and of many are made in one way."""
    return Group(
        meeting, member, config.tensor_parallel_size, source.device,
        peer_memory=not (config.disable_custom_all_reduce or config.deterministic),
    )  # fmt: skip


def _chosen(config: EngineConfig, source: _Source) -> EngineConfig:
    """With what every member would choose for itself, and perhaps otherwise."""
    threads = config.threads
    if threads is None and source.device.type == "cpu":
        threads = max(1, len(os.sched_getaffinity(0)) // config.tensor_parallel_size)
        torch.set_num_threads(threads)
    return replace(
        config,
        device=Device(source.device.type),
        dtype=Dtype(str(source.dtype).removeprefix("torch.")),
        threads=threads,
    )


def _load(config: EngineConfig, source: _Source, member: Member) -> _Loaded:
    narrow_head = config.head_dtype == HeadDtype.INT8
    shard = member.shard
    place = Placement(source.device, source.dtype, config.deterministic, narrow_head, shard)
    spec = source.spec if shard is None else shard.spec
    weights = Weights(source.checkpoint, spec, place)
    with torch.inference_mode():
        positions = config.max_model_len or spec.max_position
        model = Decoder(weights, positions=positions, group=member.group)
        images = _image_vectors(source.checkpoint, weights, member)
    weights.finish()
    if narrow_head:
        log.info("head in int8: %s", weights.narrow_head or "quantised in the checkpoint")
    return _Loaded(model, weights, images)


def _built(
    config: EngineConfig, source: _Source, member: Member, timeline: Timeline
) -> Built[LaidOut]:
    with ThreadPoolExecutor(1) as beside, _compilers(config, source.device) as compilers:
        base = beside.submit(_base_spec, config.model)  # reads the embeddings: some seconds
        loaded = _load(config, source, member)
        timeline.mark("weights")
        return _compose(config, loaded, member, base, _Start(timeline, compilers))


@contextmanager
def _compilers(config: EngineConfig, device: torch.device) -> Iterator[Compilers | None]:
    """They import what they need while weights are read."""
    if device.type != "cuda":
        yield None
        return
    cores = len(os.sched_getaffinity(0)) // config.tensor_parallel_size
    compilers = Compilers(max(1, cores - 1))
    try:
        yield compilers
    finally:
        compilers.close()


def _image_vectors(checkpoint: Checkpoint, weights: Weights, member: Member) -> ImageVectors | None:
    """None where the model reads text alone, and on members that the lead shows what it saw."""
    seeing = Seeing.of(checkpoint.path)
    if seeing is None:
        return None
    if not member.leads:
        weights.pass_over(SIGHT)
        return None
    tower = Tower(weights, checkpoint.whole_config, seeing)
    return ImageVectors(tower, seeing, weights.place.device)


def _part(config: EngineConfig, loaded: _Loaded, member: Member, start: _Start) -> _Part:
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
    return _Part(
        pages=pages,
        size=size,
        memory=memory,
        runner=runner,
        adapters=AdapterMemory(spec, memory, table, vectors, shard=member.shard),
        swap=_swap(config, memory),
        proposer=proposer,
        compiled=compiled,
    )


def _compose(
    config: EngineConfig,
    loaded: _Loaded,
    member: Member,
    fingerprinted: Future[BaseSpec],
    start: _Start,
) -> Built[LaidOut]:
    spec, weights, images = loaded.model.spec, loaded.weights, loaded.images
    place, part, lead = weights.place, _part(config, loaded, member, start), member.lead
    base, grammars = fingerprinted.result(), _grammars(config, spec, place.device)
    adapters = part.adapters if lead is None else TeamAdapters(part.adapters, lead)
    swap: PageSwap | None = part.swap
    if lead is not None and part.swap is not None:
        swap = TeamPages(part.swap, lead)
    store = _store(config)

    def load(manifest: AdapterManifest) -> LaidOut:
        try:
            return adapters.lay_out(pack(manifest, base, place.dtype))
        except AdapterUnusable as error:
            raise AdapterInvalid([str(error)]) from error

    return Built(
        runner=part.runner,
        memory=adapters,
        base=BaseInfo(
            fingerprint=base.fingerprint,
            architecture=spec.architecture,
            vocab_size=spec.vocab_size,
            quantization=weights.quantization,
            dtype=str(place.dtype).removeprefix("torch."),
            hidden_size=spec.hidden_size,
            image_tokens=images.seeing.tokens if images else 0,
            image_side=images.seeing.preparation.side if images else 0,
        ),
        num_pages=part.pages,
        max_model_len=part.size.max_model_len(part.pages),
        eos=frozenset(spec.eos_tokens),
        adapters=_host_cache(config, store, load),
        proposer=part.proposer,
        grammars=grammars,
        swap=swap,
        close=_closing(part, member),
        transfer=_transfer(config, part.memory),
        max_step_s=STEP_S if place.device.type == "cuda" else None,
        pass_sizes=BUCKETS if place.device.type == "cuda" and not config.enforce_eager else (),
        ahead=place.device.type == "cuda",
        compiled=part.compiled,
        reference=_references(config, store, base, part.adapters.size, place.dtype),
    )


def _closing(part: _Part, member: Member) -> Callable[[], None]:
    lead, group = member.lead, member.group
    if lead is None or group is None:
        return lambda: None

    def close() -> None:
        lead.close()
        group.leave()

    return close


def _pages(
    config: EngineConfig,
    size: PoolSize,
    model: Decoder,
    memory_of: Callable[[int], PageMemory],
    builder: BatchBuilder,
    images: ImageVectors | None,
    start: _Start,
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
    start: _Start,
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


def _swap(config: EngineConfig, memory: PageMemory) -> HostPages | None:
    swap = HostPages(memory, config.swap_bytes)
    if not swap.slots:
        return None
    log.info("swap: %d pages, %.0f us each one way", swap.slots, 1e6 * swap.page_s)
    return swap


def _transfer(config: EngineConfig, memory: PageMemory) -> TransferPages | None:
    """Raises ConfigError."""
    if not config.hands:
        return None
    transfer = TransferPages(memory, config.handoff_bytes, direct=config.handoff_direct)
    if transfer.slots < LEAST_SLOTS:
        raise ConfigError(
            f"handoff_bytes={config.handoff_bytes} must hold {LEAST_SLOTS} pages of "
            f"{transfer.page_bytes} bytes"
        )
    return transfer


def _store(config: EngineConfig) -> Store | None:
    """Raises ConfigError."""
    if config.adapter_store is None:
        return None
    home = config.data_dir or tempfile.mkdtemp(prefix="loratorio-")
    try:
        return open_store(config.adapter_store, cache=Path(home) / ADAPTER_CACHE)
    except StoreUnusable as error:
        raise ConfigError(f"--adapter-store: {error}") from error


def _references(
    config: EngineConfig,
    store: Store | None,
    base: BaseSpec,
    size: Callable[[PackedAdapter], int],
    dtype: torch.dtype,
) -> References | None:
    if store is None:
        return None
    codes = config.adapter_dtype.codes
    rounding = None if codes is None else Rounding(dtype, Narrow(codes))
    return References(config.model, store, base, size, rounding)


def _grammars(config: EngineConfig, spec: ModelSpec, device: torch.device) -> Grammars | None:
    """None where answers cannot be held to any: nobody says what the tokens spell, say."""
    tokenizer = Path(config.model) / "tokenizer.json"
    if not tokenizer.is_file():
        return None
    try:
        from engine.grammars import LlGrammars
    except ImportError as error:  # a bare machine, for measurements
        log.warning("requests with a grammar are refused: %s", error)
        return None
    cores = len(os.sched_getaffinity(0))
    threads = 1 if device.type == "cpu" else max(1, min(MASK_THREADS, cores // 2))
    return LlGrammars(
        tokenizer, vocab_size=spec.vocab_size, eos=sorted(spec.eos_tokens), threads=threads
    )


def _host_cache(
    config: EngineConfig, store: Store | None, load: Callable[[AdapterManifest], LaidOut]
) -> HostCache[LaidOut] | None:
    return None if store is None else HostCache(store, load, config.host_cache_bytes)
