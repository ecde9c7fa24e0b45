"""Loads a model, lays out its memory, makes it ready: composes everything that needs torch."""

import logging
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid, BaseUnreadable, StoreUnusable
from adapters.host_cache import HostCache
from adapters.manifest import AdapterManifest
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
from engine.compiling import CompileCount
from engine.config import EngineConfig, HeadDtype
from engine.errors import AdapterUnusable, CheckpointInvalid, ConfigError
from engine.handoff.pages import TransferPages
from engine.host_pages import HostPages
from engine.images import ImageVectors
from engine.loading import Placement, Weights
from engine.matcher import Grammars
from engine.memory import PoolSize
from engine.models.decoder import Decoder
from engine.models.spec import ModelSpec
from engine.models.tower import Tower
from engine.page_memory import PageMemory
from engine.page_size import ITEM, page_elements, pages_of_tokens
from engine.placement import A_ROWS
from engine.plan import Memory, Wish, describe, divide
from engine.precision import choose_device, choose_dtype
from engine.protocol import BaseInfo
from engine.references import References
from engine.rehearsal import Needs, Rehearsal, Stage
from engine.runner import ModelRunner
from engine.seeing import Seeing
from engine.speculation.proposers import make_proposer
from engine.stored_weights import of_checkpoint
from kernels.segments import SEGMENT_TILES

STEP_S = 0.025  # of a pass with decodes on CUDA: others' tokens stay even while prompts enter
MASK_THREADS = 8
LEAST_SLOTS = 2  # for pages on their way: one each way
RESERVED_ROWS = 2048  # of the adapter table, before graphs are captured over it
ADAPTER_CACHE = "adapter-cache"  # in the data directory: copies of what is stored elsewhere
log = logging.getLogger(__name__)


def build_runner(config: EngineConfig) -> Built[LaidOut]:
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
    narrow_head = config.head_dtype == HeadDtype.INT8
    place = Placement(device, choice.dtype, config.deterministic, narrow_head)
    weights = Weights(checkpoint, spec, place)
    with ThreadPoolExecutor(1) as beside:
        base = beside.submit(_base_spec, config.model)  # reads the embeddings: some seconds
        with torch.inference_mode():
            model = Decoder(weights, positions=config.max_model_len or spec.max_position)
            images = _image_vectors(checkpoint, weights)
        weights.finish()
        if narrow_head:
            log.info("head in int8: %s", weights.narrow_head or "quantised in the checkpoint")
        return _compose(config, model, weights, base, images)


def _image_vectors(checkpoint: Checkpoint, weights: Weights) -> ImageVectors | None:
    """None where the model reads text alone."""
    seeing = Seeing.of(checkpoint.path)
    if seeing is None:
        return None
    tower = Tower(weights, checkpoint.whole_config, seeing)
    return ImageVectors(tower, seeing, weights.place.device)


def _compose(
    config: EngineConfig,
    model: Decoder,
    weights: Weights,
    fingerprinted: Future[BaseSpec],
    images: ImageVectors | None,
) -> Built[LaidOut]:
    spec, place = model.spec, weights.place
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

    size = PoolSize(config, spec, place.dtype)
    proposer, watcher = make_proposer(config, model)
    pages = _pages(config, size, model, memory_of, builder, images)
    memory, table = memory_of(pages), AdapterTable(spec, place.device)
    runner = ModelRunner(
        model, memory, table, builder, max_seqs=config.max_num_seqs,
        max_tokens=config.max_num_batched_tokens, max_draws=config.draw_rows, images=images,
        watcher=watcher,
    )  # fmt: skip
    compiled = CompileCount()
    if place.device.type == "cuda":
        table.reserve(rows=min(RESERVED_ROWS, pages), rank=A_ROWS)
        if not config.enforce_eager:
            runner.capture(pages_of_tokens(size.max_model_len(pages), config.page_tokens))
        compiled.begin()
    base, grammars = fingerprinted.result(), _grammars(config, spec, place.device)
    adapters = AdapterMemory(spec, memory, table, BaseVectors(model.linears(), place.device))

    store = _store(config)

    def load(manifest: AdapterManifest) -> LaidOut:
        try:
            return adapters.lay_out(pack(manifest, base, place.dtype))
        except AdapterUnusable as error:
            raise AdapterInvalid([str(error)]) from error

    return Built(
        runner=runner,
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
        num_pages=pages,
        max_model_len=size.max_model_len(pages),
        eos=frozenset(spec.eos_tokens),
        adapters=_host_cache(config, store, load),
        proposer=proposer,
        grammars=grammars,
        swap=_swap(config, memory),
        transfer=_transfer(config, memory),
        max_step_s=STEP_S if place.device.type == "cuda" else None,
        ahead=place.device.type == "cuda",
        compiled=compiled,
        reference=_references(config, store, base, adapters),
    )


def _pages(
    config: EngineConfig,
    size: PoolSize,
    model: Decoder,
    memory_of: Callable[[int], PageMemory],
    builder: BatchBuilder,
    images: ImageVectors | None,
) -> int:
    """Pages of the pool; on CUDA after every kind of pass was tried."""
    device = model.embedding.table.device
    if device.type != "cuda":
        return size.pages(device, 0)
    weights = torch.cuda.memory_allocated()
    needs = _rehearse(config, model, memory_of(1), builder)
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
        page_tokens=config.page_tokens,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        utilization=config.gpu_memory_utilization,
    )
    memory = Memory(budget, weights, budget - weights - pool)
    found = divide(
        spec, wish, memory, known_device(name), of_checkpoint(Path(config.model))[1].precision
    )
    return describe(found, wish, measured=True)


def _rehearse(
    config: EngineConfig, model: Decoder, memory: PageMemory, builder: BatchBuilder
) -> Needs:
    device = memory.pool.device
    longest = pages_of_tokens(config.max_model_len or model.spec.max_position, config.page_tokens)

    def stage(layers: int | None) -> Stage:
        part, table = model.shallow(layers) if layers else model, AdapterTable(model.spec, device)
        runner = ModelRunner(
            part, memory, table, builder, max_seqs=config.max_num_seqs,
            max_tokens=config.max_num_batched_tokens, max_draws=config.draw_rows,
        )  # fmt: skip
        return Stage(runner, table, lambda: runner.graphs(longest))

    return Rehearsal(stage, model.spec, config).play(device)


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
    config: EngineConfig, store: Store | None, base: BaseSpec, adapters: AdapterMemory
) -> References | None:
    if store is None:
        return None

    def pages_for(packed: PackedAdapter) -> int:
        return adapters.pages_for(adapters.lay_out(packed))

    return References(config.model, store, base, pages_for)


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
