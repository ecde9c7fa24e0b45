"""Which rows of a batch belong to which adapter.

Rows are ordered so that those of one adapter are adjacent: a *segment*. The segments of a batch
cover every row exactly once and in order; entries past the last segment have length 0 and
adapter -1, so that a captured graph can be launched over a fixed number of them.

G is the number of entries, T the number of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

BASE = -1  # the adapter of rows that use the base model alone
SEGMENT_TILES = (16, 64)  # rows that one program of a LoRA kernel may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The segments of one batch, on its device."""

    start: torch.Tensor  # [G] int32, first row
    length: torch.Tensor  # [G] int32, rows; 0 for an unused entry
    adapter: torch.Tensor  # [G] int32, row of the adapter table; -1 base model or unused
    longest: int  # at least the longest segment, a host integer: it sizes the launch grid
    runs: tuple[tuple[int, int, int], ...]  # (start, length, adapter) of the used entries

    @classmethod
    def of_rows(
        cls,
        adapters: Sequence[int],
        device: torch.device | str,
        *,
        tile: int | None = None,
        capacity: int | None = None,
    ) -> "Segments":
        """Segments of a batch given the adapter of each row.

        Args:
            adapters: the adapter of every row; equal ones adjacent for the best speed.
            tile: no segment is longer than this; None leaves them whole.
            capacity: G; None means exactly as many entries as there are segments.
        """
        runs = cls.cut(adapters, tile=tile)
        count = len(runs) if capacity is None else capacity
        if len(runs) > count:
            raise ValueError(f"{len(runs)} segments exceed the capacity of {count}")
        table = [*runs, *[(0, 0, BASE)] * (count - len(runs))]
        columns = torch.tensor(table, dtype=torch.int32).reshape(count, 3).t().contiguous()
        start, length, adapter = columns.to(device, non_blocking=True).unbind(0)
        longest = tile or max((length for _, length, _ in runs), default=0)
        return cls(start=start, length=length, adapter=adapter, longest=longest, runs=runs)

    @staticmethod
    def cut(adapters: Sequence[int], *, tile: int | None) -> tuple[tuple[int, int, int], ...]:
        """(start, length, adapter) of the segments of a batch, none longer than the tile."""
        runs = tuple(_runs(adapters))
        return runs if tile is None else Segments.split(runs, tile)

    @staticmethod
    def split(runs: Sequence[tuple[int, int, int]], tile: int) -> tuple[tuple[int, int, int], ...]:
        """The same segments, none longer than the tile."""
        return tuple(
            (start + first, min(tile, length - first), adapter)
            for start, length, adapter in runs
            for first in range(0, length, tile)
        )


def _runs(adapters: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    start = 0
    for adapter, rows in groupby(adapters):
        length = sum(1 for _ in rows)
        yield start, length, adapter
        start += length
