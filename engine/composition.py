"""Loads a model, lays out its memory, makes it ready: composes everything that needs torch."""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from adapters.base_spec import BaseSpec
from adapters.errors import AdapterInvalid, BaseUnreadable
from adapters.host_cache import HostCache
from adapters.manifest import AdapterManifest
from adapters.pack import pack
from engine.adapter_layout import LaidOut
from engine.built import Built
from engine.compilers import Compilers
from engine.config import Device, Dtype, EngineConfig
from engine.errors import AdapterUnusable, CheckpointInvalid, EngineError
from engine.facilities import adapter_store, grammars_of, page_transfer, references
from engine.mixed_graphs import BUCKETS
from engine.part import Part, Start, make_part
from engine.protocol import BaseInfo
from engine.source import Loaded, Source, load_model
from engine.swap import PageSwap
from engine.team.adapters import TeamAdapters, TeamPages
from engine.team.follower import Follower, Pantry
from engine.team.group import Group
from engine.team.lead import Lead
from engine.team.member import Member
from engine.team.orders import AnyOrder, AnyWord, Begin, Ready
from engine.team.shard import Shard
from engine.team.supply import Keep, Kept
from engine.team.wire import Wire
from engine.timeline import Timeline

STEP_S = 0.025  # of a pass with decodes on CUDA: others' tokens stay even while prompts enter


def build_runner(config: EngineConfig, timeline: Timeline | None = None) -> Built[LaidOut]:
    """Load the model and lay out its memory, on this and all other members of its team.

    Raises ConfigError, CheckpointInvalid, OutOfMemory or MemberLost, each with what to change.
    """
    timeline = timeline or Timeline()
    timeline.mark("imports")
    size, source = config.tensor_parallel_size, Source.of(config, 0)
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
    source = Source.of(config, number)
    shard = Shard(number, config.tensor_parallel_size, source.spec)
    wire.send(Ready())
    group = _joined(config, Path(begin.meeting), number, source)
    member = Member(group, shard)
    with _compilers(config, source.device) as compilers:
        start = Start(Timeline(), compilers)
        part = make_part(config, load_model(config, source, member), member, start)
    pantry = Pantry(supply, part.adapters.lay_out)
    pantry.start(source.device)
    gc.collect()
    gc.freeze()  # as in an engine that serves
    return Follower(wire, part.runner, part.memory, part.adapters, pantry, part.swap)


def _joined(config: EngineConfig, meeting: Path, member: int, source: Source) -> Group:
    """In deterministic mode sums of few rows and of many are made in one way."""
    return Group(
        meeting, member, config.tensor_parallel_size, source.device,
        peer_memory=not (config.disable_custom_all_reduce or config.deterministic),
    )  # fmt: skip


def _chosen(config: EngineConfig, source: Source) -> EngineConfig:
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


def _built(
    config: EngineConfig, source: Source, member: Member, timeline: Timeline
) -> Built[LaidOut]:
    with ThreadPoolExecutor(1) as beside, _compilers(config, source.device) as compilers:
        base = beside.submit(_base_spec, config.model)  # reads the embeddings: some seconds
        loaded = load_model(config, source, member)
        timeline.mark("weights")
        return _compose(config, loaded, member, base, Start(timeline, compilers))


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


def _compose(
    config: EngineConfig,
    loaded: Loaded,
    member: Member,
    fingerprinted: Future[BaseSpec],
    start: Start,
) -> Built[LaidOut]:
    spec, weights, images = loaded.model.spec, loaded.weights, loaded.images
    place, part, lead = weights.place, make_part(config, loaded, member, start), member.lead
    base, grammars = fingerprinted.result(), grammars_of(config, spec, place.device)
    adapters = part.adapters if lead is None else TeamAdapters(part.adapters, lead)
    swap: PageSwap | None = part.swap
    if lead is not None and part.swap is not None:
        swap = TeamPages(part.swap, lead)
    store = adapter_store(config)

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
        adapters=None if store is None else HostCache(store, load, config.host_cache_bytes),
        proposer=part.proposer,
        grammars=grammars,
        swap=swap,
        close=_closing(part, member),
        transfer=page_transfer(config, part.memory),
        max_step_s=STEP_S if place.device.type == "cuda" else None,
        pass_sizes=BUCKETS if place.device.type == "cuda" and not config.enforce_eager else (),
        ahead=place.device.type == "cuda",
        compiled=part.compiled,
        reference=references(config, store, base, part.adapters.size, place.dtype),
    )


def _closing(part: Part, member: Member) -> Callable[[], None]:
    lead, group = member.lead, member.group
    if lead is None or group is None:
        return lambda: None

    def close() -> None:
        lead.close()
        group.leave()

    return close


def _base_spec(path: str) -> BaseSpec:
    try:
        return BaseSpec.from_checkpoint(path)
    except BaseUnreadable as error:
        raise CheckpointInvalid(str(error)) from error
