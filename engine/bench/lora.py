"""Shrink and expand of one layer's four sites, for batches of many adapters.

The adapters lie in pages where the engine would put them, all layers of them, and the layers are
run in turn, so that matrices come from memory. Right means: what the factors say, in float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from adapters.base_spec import BaseSpec
from adapters.narrow import Narrow, rounded
from adapters.pack import PackedAdapter
from engine.adapter_memory import AdapterMemory
from engine.adapter_table import AdapterTable
from engine.bench.alone import MadeAdapters, adapter_ref
from engine.bench.floor import Work, lora_floor
from engine.bench.rows import Row
from engine.bench.setting import Figure, Setting, row
from engine.bench.shapes import Shape
from engine.bench.timing import compute_device, compute_dtype, microseconds, require_close
from engine.decode_table import SEGMENT_TILE
from engine.models.spec import ModelSpec
from engine.page_memory import PageMemory
from engine.page_size import adapter_pages, page_elements
from engine.placement import SITES
from kernels.lora_codes import LoraCodes
from kernels.lora_expand import lora_addend
from kernels.lora_shrink import hidden_shape, lora_shrink
from kernels.lora_table import LoraSite
from kernels.segments import Segments

MIXES = ((1, 1), (64, 1), (64, 4), (64, 16), (64, 64), (256, 64))
PAGE_TOKENS = 64
CHECKED = 4  # adapters of a batch whose rows are compared


@dataclass(frozen=True, slots=True)
class Buffers:
    """What one site reads and writes, made before a graph is captured."""

    x: torch.Tensor  # [T, K]
    h: torch.Tensor
    y: torch.Tensor  # [T, N]


class Pages:
    """Adapters of one rank in a pool of their own."""

    def __init__(self, shape: Shape, *, rank: int, adapters: int, codes: str | None = None) -> None:
        self.device = compute_device()
        self.dtype = compute_dtype(self.device)
        spec = ModelSpec.read(shape.config())
        elements = page_elements(spec, PAGE_TOKENS)
        item, narrow = self.dtype.itemsize, codes is not None
        each = adapter_pages(spec, rank, elements, item=item, narrow=narrow)
        self.memory = PageMemory(
            spec, PAGE_TOKENS, num_pages=each * adapters, dtype=self.dtype, device=self.device
        )
        self.table = AdapterTable(spec, self.device, LoraCodes(codes) if codes else None)
        placed = AdapterMemory(spec, self.memory, self.table)
        made = MadeAdapters(base_of(shape), self.dtype, self.device)
        self.table.reserve(rows=adapters, rank=rank)
        self.packed: list[PackedAdapter] = []
        for number in range(adapters):
            digest = adapter_ref(number, rank).digest
            packed = made.packed(digest)
            laid = placed.lay_out(packed)
            placed.place(number, laid, range(number * each, (number + 1) * each))
            self.packed.append(rounded(packed, Narrow(codes)) if codes else packed)
        self.table.await_rows(range(adapters))


def base_of(shape: Shape) -> BaseSpec:
    return BaseSpec(
        architecture=shape.architecture,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=shape.num_hidden_layers,
        num_heads=shape.num_attention_heads,
        num_kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=shape.tie_word_embeddings,
        max_position=4096,
    )


def lora_rows(setting: Setting, mixes: Sequence[tuple[int, int]] = MIXES) -> list[Row]:
    """Microseconds of one layer. Raises BenchmarkRefused when a site's result is wrong."""
    pages = Pages(
        setting.shape, rank=setting.rank, adapters=max(n for _, n in mixes),
        codes=setting.adapter_dtype.codes,
    )  # fmt: skip
    found = []
    for batch, adapters in mixes:
        owners = sorted(i % adapters for i in range(batch))
        buffers = _buffers(pages, batch)
        segments = Segments.of_rows(owners, pages.device, tile=SEGMENT_TILE)
        _check(pages, buffers, segments, owners)
        layers = pages.table.sites

        def one_layer(
            i: int, buffers: dict[str, Buffers] = buffers, s: Segments = segments
        ) -> None:
            for name, site in layers[i].items():  # noqa: B023
                _run(pages, site, buffers[name], s)

        time = microseconds(one_layer, len(layers))
        work = Work(rows=batch, context=0, adapters=adapters, rank=setting.rank)
        known = setting.device
        figure = Figure(
            bench="lora", op="shrink+expand", metric="layer time", value=time, unit="us",
            batch=batch, adapters=adapters,
            floor=(
                lora_floor(setting.shape, work, known, setting.precision) * 1e6 if known else None
            ),
        )  # fmt: skip
        found.append(row(setting, figure))
    return found


def _run(pages: Pages, site: LoraSite, at: Buffers, segments: Segments) -> None:
    lora_shrink(at.x, pages.memory.flat, site, segments, out=at.h, deterministic=False)
    lora_addend(at.h, pages.memory.flat, site, segments, at.y)


def _buffers(pages: Pages, batch: int) -> dict[str, Buffers]:
    draw = torch.Generator(device=pages.device).manual_seed(batch)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=draw, device=pages.device).to(pages.dtype)

    return {
        name: Buffers(
            x=normal(batch, site.width),
            h=torch.empty(hidden_shape(site, batch, deterministic=False), device=pages.device),
            y=normal(batch, site.columns),
        )
        for name, site in pages.table.sites[0].items()
    }


def _check(
    pages: Pages, buffers: dict[str, Buffers], segments: Segments, owners: Sequence[int]
) -> None:
    """The first and the last layer, rows of a few adapters spread over the batch."""
    last = len(pages.table.sites) - 1
    chosen = sorted(set(owners[:: max(1, len(owners) // CHECKED)]) | {owners[-1]})
    for layer in {0, last}:
        for name, at in buffers.items():
            _run(pages, pages.table.sites[layer][name], at, segments)
            for owner in chosen:
                rows = torch.tensor([r for r, o in enumerate(owners) if o == owner])
                rows = rows.to(pages.device)
                adds = list(_defined(pages.packed[owner], layer, name, at.x[rows].double()))
                want = torch.cat(adds, dim=1)
                require_close(f"{name} of layer {layer}, adapter {owner}", at.y[rows], want)


def _defined(
    packed: PackedAdapter, layer: int, site: str, x: torch.Tensor
) -> Iterator[torch.Tensor]:
    """What each slice of a site gains, from the adapter's own factors. x is float64."""
    for module in SITES[site]:
        factor = packed.factors[layer, module]
        a, b = (t.to(x.device, torch.float64) for t in (factor.a, factor.b))
        yield x @ a.t() @ b.t()
