"""On a CPU: where the tokens of a pass lie in the pages, found once for all layers.

    kv    [P, 2, KVH, PS, D]  one layer's view of the page pool; a [PS, D] tile is contiguous
    rows  [.., D]             the same memory, one row per (page, k or v, head, offset)
    magnitudes [P, 2, KVH, PS]  beside a kv of 8 bits, see ``e4m3``

Layers have pages of the same layout, each at an offset of its own, so a row's number is the same
in all of them. A key that a sequence does not have is read from its last one and masked: memory
of another owner is never read, as a NaN counts even with a weight of 0.
"""

from dataclasses import dataclass, field

import torch

from kernels.e4m3 import from_e4m3, to_e4m3
from kernels.launch import require


def rows_of(kv: torch.Tensor) -> torch.Tensor:
    """[rows, D], a view of the layer's memory; what lies between its tiles included."""
    P, sides, KVH, PS, D = kv.shape
    tiles = (P - 1) * _step(kv) + sides * KVH
    return kv.as_strided((tiles * PS, D), (D, 1))


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The tokens of a pass: how their heads turn, and where their keys and values go."""

    cos: torch.Tensor  # float32 [T, 1, D], of both halves
    sin: torch.Tensor  # float32 [T, 1, D], that of the first half negative
    rows: torch.Tensor  # [W, 2 KVH] int64, those of tokens that are written
    written: torch.Tensor | None  # [T] which those are; None: all

    @classmethod
    def of(
        cls,
        kv: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> "NewTokens":
        """Arguments as ``qkv_heads`` takes them."""
        cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=2)
        cos, sin = torch.cat((cos, cos), dim=2), torch.cat((-sin, sin), dim=2)
        written = slots >= 0
        if bool(written.all()):
            return cls(cos, sin, _rows(kv, slots), None)
        return cls(cos, sin, _rows(kv, slots[written]), written)

    def turn(self, heads: torch.Tensor) -> None:
        """Rotate [T, heads, D] in place: ``rope``."""
        swapped = heads.roll(heads.shape[2] // 2, 2)
        heads.copy_(torch.mul(heads, self.cos).add_(torch.mul(swapped, self.sin)))

    def write(
        self, kv: torch.Tensor, heads: torch.Tensor, magnitudes: torch.Tensor | None = None
    ) -> None:
        """Store [T, 2 KVH, D], keys before values: ``kv_write``."""
        live = heads if self.written is None else heads[self.written]
        if magnitudes is None:
            rows_of(kv).index_put_((self.rows,), live)
            return
        codes, sizes = to_e4m3(live)
        bits = rows_of(kv).view(torch.uint8)
        bits.index_put_((self.rows,), codes.view(torch.uint8))
        _flat(magnitudes).index_put_((_beside(kv, magnitudes, self.rows),), sizes)


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """The keys and values that sequences with one new token read."""

    rows: torch.Tensor  # [B * 2 KVH * S] int64
    longest: int  # S, keys of the longest sequence
    last: torch.Tensor  # [B] int64, position of the newest key of each sequence that has any
    live: torch.Tensor | None  # [sequences] which those are; None: all
    in_order: bool  # sequence i asks with row i
    _hidden: dict[tuple[int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    _sizes: dict[int, torch.Tensor] = field(default_factory=dict)  # where magnitudes are

    @classmethod
    def of(
        cls,
        kv: torch.Tensor,
        page_table: torch.Tensor,
        context_lens: torch.Tensor,
        rows: torch.Tensor,
    ) -> "SeenKeys":
        """Arguments as ``paged_decode`` takes them."""
        live = None if bool(context_lens.all()) else context_lens > 0
        if live is not None:
            page_table, context_lens = page_table[live], context_lens[live]
        PS, last, longest = (
            kv.shape[3],
            context_lens.long() - 1,
            max(context_lens.tolist(), default=0),
        )
        at = torch.minimum(torch.arange(longest), last.unsqueeze(1))  # [B, S]
        slots = page_table.long().gather(1, at // PS) * PS + at % PS
        read = _rows(kv, slots).transpose(1, 2).reshape(-1)
        in_order = live is None and rows.tolist() == list(range(rows.numel()))
        return cls(read, longest, last, live, in_order)

    def read(
        self, kv: torch.Tensor, magnitudes: torch.Tensor | None, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies [B, KVH, S, D] of keys and of values; ``dtype`` is kv's own where that is wide."""
        B, KVH, D = self.last.numel(), kv.shape[2], kv.shape[4]
        if magnitudes is None:
            both = rows_of(kv).index_select(0, self.rows)
        else:
            codes = rows_of(kv).view(torch.uint8).index_select(0, self.rows)
            page = magnitudes.stride(0)  # the same in every layer
            if page not in self._sizes:
                self._sizes[page] = _beside(kv, magnitudes, self.rows)
            sizes = _flat(magnitudes).index_select(0, self._sizes[page])
            both = from_e4m3(codes.view(kv.dtype), sizes, dtype)
        both = both.view(B, 2 * KVH, self.longest, D)
        return both[:, :KVH], both[:, KVH:]

    def hidden(self, window: int, dtype: torch.dtype) -> torch.Tensor:
        """[B, 1, 1, S] to add to scores: 0, or -inf where the new token does not see a key."""
        if (window, dtype) not in self._hidden:
            behind = self.last.unsqueeze(1) - torch.arange(self.longest)
            unseen = (behind < 0) | (behind >= window) if window else behind < 0
            mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, -torch.inf)
            self._hidden[window, dtype] = mask[:, None, None]
        return self._hidden[window, dtype]


@dataclass(frozen=True, slots=True)
class Places:
    """What the attention of every layer of one pass asks."""

    new: NewTokens
    seen: SeenKeys | None  # None: no decodes, or each finds its own


def _flat(magnitudes: torch.Tensor) -> torch.Tensor:
    P, sides, KVH, PS = magnitudes.shape
    return magnitudes.as_strided(((P - 1) * magnitudes.stride(0) + sides * KVH * PS,), (1,))


def _beside(kv: torch.Tensor, magnitudes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Where in ``_flat`` the magnitudes of rows are."""
    page = _step(kv) * kv.shape[3]  # rows from one page to the next
    return rows // page * magnitudes.stride(0) + rows % page


def _rows(kv: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[..] slots (page * PS + offset) to [.., 2 KVH] rows."""
    PS = kv.shape[3]
    page, offset = slots // PS, slots % PS
    tile = torch.arange(2 * kv.shape[2])
    return ((page * _step(kv)).unsqueeze(-1) + tile) * PS + offset.unsqueeze(-1)


def _step(kv: torch.Tensor) -> int:
    """Tiles from one page to the next."""
    _, _, KVH, PS, D = kv.shape
    tile = PS * D
    require(
        kv.stride()[1:] == (KVH * tile, tile, D, 1) and kv.stride(0) % tile == 0,
        "kv: a page must be a whole number of tiles, the layer's own adjacent",
    )
    return kv.stride(0) // tile
