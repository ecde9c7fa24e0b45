"""Attention of one layer over pages as the engine lays them, contexts read from memory.

``decode`` is one new token for each of many sequences; ``prefill`` whole prompts at once. All
layers of the pool are run in turn. A sequence's pages are scattered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.bench.floor import Work, attention_floor
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row
from engine.bench.shapes import Shape
from engine.bench.timing import compute_device, compute_dtype, microseconds, require_close
from engine.models.spec import ModelSpec
from engine.page_memory import LayerPages, PageMemory
from kernels.e4m3 import to_e4m3
from kernels.paged_decode import paged_decode, paged_decode_reference
from kernels.ragged_prefill import ragged_prefill, ragged_prefill_reference

PAGE_TOKENS = 64
DECODES = ((64, 590), (16, 16384), (256, 590))  # sequences, context
PREFILLS = ((1, 8192), (8, 1024))  # prompts, length

Attend = Callable[[LayerPages, torch.Tensor], None]  # (pages of a layer, out)


@dataclass(frozen=True, slots=True)
class Contexts:
    """Sequences of one length in pages of their own, values random."""

    memory: PageMemory
    page_table: torch.Tensor  # [B, pages] int32
    lengths: torch.Tensor  # [B] int32

    @classmethod
    def make(cls, setting: Setting, count: int, length: int) -> "Contexts":
        device, each = compute_device(), -(-length // PAGE_TOKENS)
        spec, dtype = ModelSpec.read(setting.shape.config()), compute_dtype(device)
        memory = PageMemory(
            spec,
            PAGE_TOKENS,
            num_pages=count * each,
            dtype=dtype,
            device=device,
            narrow=setting.narrow_kv,
        )
        if not setting.narrow_kv:
            memory.pool.normal_()
        for pages in memory.layers if setting.narrow_kv else ():
            assert pages.magnitudes is not None
            codes, sizes = to_e4m3(torch.randn(pages.kv.shape, device=device))
            pages.kv.view(torch.uint8).copy_(codes.view(torch.uint8))
            pages.magnitudes.copy_(sizes)
        order = torch.randperm(count * each, generator=torch.Generator().manual_seed(0))
        table = order.view(count, each).to(device, torch.int32)
        return cls(memory, table, torch.full((count,), length, dtype=torch.int32, device=device))


def attention_rows(
    setting: Setting,
    decodes: Sequence[tuple[int, int]] = DECODES,
    prefills: Sequence[tuple[int, int]] = PREFILLS,
) -> list[Row]:
    """Microseconds of one layer. Raises BenchmarkRefused when a result is wrong."""
    decoded = [_decode(setting, count, length) for count, length in decodes]
    return decoded + [_prefill(setting, count, length) for count, length in prefills]


def _decode(setting: Setting, count: int, length: int) -> Row:
    contexts = Contexts.make(setting, count, length)
    q, table, lengths = _queries(setting.shape, count), contexts.page_table, contexts.lengths
    rows = torch.arange(count, dtype=torch.int32, device=q.device)
    scale = setting.shape.head_dim**-0.5

    def attend(pages: LayerPages, out: torch.Tensor) -> None:
        paged_decode(
            q,
            pages.kv,
            table,
            lengths,
            rows=rows,
            scale=scale,
            out=out,
            magnitudes=pages.magnitudes,
        )

    def define(pages: LayerPages, out: torch.Tensor) -> None:
        paged_decode_reference(
            q,
            pages.kv,
            table,
            lengths,
            rows=rows,
            scale=scale,
            out=out,
            magnitudes=pages.magnitudes,
        )

    time = _measure("paged_decode", contexts, q, attend, define)
    return _row(setting, "paged_decode", time, Work(rows=count, context=length), chunk=1)


def _prefill(setting: Setting, count: int, length: int) -> Row:
    contexts = Contexts.make(setting, count, length)
    q, lengths = _queries(setting.shape, count * length), contexts.lengths
    start = torch.arange(count, dtype=torch.int32, device=q.device) * length
    scale = setting.shape.head_dim**-0.5
    chunks = (contexts.page_table, start, lengths, lengths)

    def attend(pages: LayerPages, out: torch.Tensor) -> None:
        ragged_prefill(
            q, pages.kv, *chunks, longest=length, scale=scale, out=out, magnitudes=pages.magnitudes
        )

    def define(pages: LayerPages, out: torch.Tensor) -> None:
        ragged_prefill_reference(
            q, pages.kv, *chunks, scale=scale, out=out, magnitudes=pages.magnitudes
        )

    time = _measure("ragged_prefill", contexts, q, attend, define)
    return _row(setting, "ragged_prefill", time, Work(rows=count, context=length), chunk=length)


def _measure(
    name: str, contexts: Contexts, q: torch.Tensor, attend: Attend, define: Attend
) -> float:
    layers = contexts.memory.layers
    got, want = torch.full_like(q, float("nan")), torch.zeros_like(q)
    attend(layers[-1], got)
    define(layers[-1], want)
    require_close(f"{name}, {len(contexts.lengths)} sequences", got, want)
    return microseconds(lambda i: attend(layers[i], got), len(layers))


def _row(setting: Setting, name: str, time: float, work: Work, *, chunk: int) -> Row:
    device = setting.device
    floor = (
        attention_floor(setting.shape, work, device, chunk=chunk, kv_bytes=setting.precision.kv)
        * 1e6
        if device
        else None
    )
    figure = Figure(
        bench="attention", op=f"{name} at {work.context}", metric="layer time", value=time,
        unit="us", batch=work.rows, context=work.context, floor=floor,
    )  # fmt: skip
    return row(setting, figure)


def _queries(shape: Shape, count: int) -> torch.Tensor:
    device = compute_device()
    draw = torch.Generator(device=device).manual_seed(count)
    size = (count, shape.num_attention_heads, shape.head_dim)
    return torch.randn(size, generator=draw, device=device).to(compute_dtype(device))
