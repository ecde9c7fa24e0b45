"""Adapters on their way from the lead's loading threads to the followers, beside the passes.

The lead reads and packs an adapter once and sends it whole; each member keeps its own part of it
in host memory, laid out for its pages, until the lead drops it.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec
import torch

from adapters.pack import Factor, PackedAdapter, Table
from engine.errors import AdapterUnusable
from engine.team.wire import Wire


class Shaped(msgspec.Struct, frozen=True, array_like=True):
    """A tensor whose bytes follow."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize)


Parts = tuple[Shaped | None, ...]


class Keep(msgspec.Struct, frozen=True, array_like=True):
    """An adapter; the bytes of its tensors follow the frame, in order."""

    key: int
    digest: str
    rank: int
    factors: list[tuple[int, str, Parts]]  # a, b, lora_bias, bias, magnitude
    tables: list[tuple[str, tuple[int, ...], Parts]]  # ids; whole, rows, low, high


class Kept(msgspec.Struct, frozen=True, array_like=True):
    error: str = ""


class Elsewhere:
    """That the followers keep an adapter. When nobody holds this any more, they need not."""

    def __init__(self, key: int, dropped: deque[int]) -> None:
        self.key = key
        weakref.finalize(self, dropped.append, key)


class Supply:
    """The lead's side. Thread-safe."""

    def __init__(self, wires: Sequence[Wire[Kept, Keep]]) -> None:
        self._wires, self._lock = wires, threading.Lock()
        self._keys = count()
        self.dropped: deque[int] = deque()  # keys that followers may forget

    def send(self, packed: PackedAdapter) -> Elsewhere:
        """Returns once all followers keep it. Raises AdapterUnusable or MemberLost."""
        tensors = list(_tensors(packed))
        with self._lock:
            found = Elsewhere(next(self._keys), self.dropped)
            keep = _described(packed, found.key)
            for wire in self._wires:
                wire.send(keep)
                for tensor in tensors:
                    wire.send_bytes(tensor.view(torch.uint8).view(-1).numpy().data)
            errors = [wire.receive().error for wire in self._wires]
        if any(errors):
            raise AdapterUnusable(next(filter(None, errors)))
        return found


def receive(wire: Wire[Keep, Kept]) -> tuple[int, PackedAdapter]:
    """A follower's side: the next adapter, and the key the lead knows it by. Raises MemberLost."""
    keep = wire.receive()

    def tensor(shaped: Shaped | None) -> torch.Tensor | None:
        if shaped is None:
            return None
        dtype: torch.dtype = getattr(torch, shaped.dtype)
        if not shaped.nbytes:
            return torch.empty(shaped.shape, dtype=dtype)
        data = wire.receive_bytes(shaped.nbytes)
        return torch.frombuffer(data, dtype=dtype).view(shaped.shape)

    factors = {}
    for layer, module, parts in keep.factors:
        a, b, *vectors = map(tensor, parts)
        assert a is not None
        assert b is not None
        factors[layer, module] = Factor(a, b, *vectors)
    tables = {}
    for name, ids, parts in keep.tables:
        whole, rows, low, high = map(tensor, parts)
        tables[name] = Table(whole=whole, rows=rows, ids=ids, low=low, high=high)
    return keep.key, PackedAdapter(keep.digest, keep.rank, factors, tables)


def _described(packed: PackedAdapter, key: int) -> Keep:
    def shaped(tensor: torch.Tensor | None) -> Shaped | None:
        if tensor is None:
            return None
        return Shaped(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    return Keep(
        key=key,
        digest=packed.digest,
        rank=packed.rank,
        factors=[
            (layer, module, tuple(map(shaped, _of_factor(factor))))
            for (layer, module), factor in packed.factors.items()
        ],
        tables=[
            (name, table.ids, tuple(map(shaped, _of_table(table))))
            for name, table in packed.tables.items()
        ],
    )


def _of_factor(factor: Factor) -> tuple[torch.Tensor | None, ...]:
    return factor.a, factor.b, factor.lora_bias, factor.bias, factor.magnitude


def _of_table(table: Table) -> tuple[torch.Tensor | None, ...]:
    return table.whole, table.rows, table.low, table.high


def _tensors(packed: PackedAdapter) -> Iterator[torch.Tensor]:
    """Those that have bytes, in the order they are described in."""
    parts = [
        *(part for factor in packed.factors.values() for part in _of_factor(factor)),
        *(part for table in packed.tables.values() for part in _of_table(table)),
    ]
    for part in parts:
        if part is not None and part.numel():
            yield part.contiguous()
