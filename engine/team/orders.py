"""What the lead of a team tells the others to do, and how that lies on a socket.

An order is one MessagePack frame of the union at the bottom, done in the order it came. A pass
comes as the arrays that its own inputs are made of, without a plan: a follower decides nothing.
Arrays travel as their bytes, with their type and shape; nothing is pickled.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig

Array = npt.NDArray[np.integer]


class Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: Array) -> "Packed":
        whole = np.ascontiguousarray(array)
        return cls(whole.dtype.str, whole.shape, whole.reshape(-1).view(np.uint8).data)

    def array(self) -> Array:
        """In memory of its own."""
        found: Array = np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape).copy()
        return found


class Order(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of every frame."""


class Begin(Order, frozen=True):
    """The first: who the follower is, and with what settings it makes its part."""

    member: int
    meeting: str  # see ``group.Group``
    config: EngineConfig


class Decode(Order, frozen=True):
    """Replay a captured pass in which every sequence decodes."""

    rows: int  # of its bucket
    adapted: bool
    table: Packed  # int32 [rows, columns in use], of verified drafts several rows for each


class Compute(Order, frozen=True):
    """A pass that comes as a batch."""

    arrays: dict[str, Packed]
    runs: tuple[tuple[int, int, int], ...]
    longest: int
    plain: bool  # no embedding and no logit is changed
    heads: tuple[tuple[int, int], ...]  # (first, end) of rows whose logits are wanted, in turn


class Copies(Order, frozen=True):
    """Copy pages before all else that follows."""

    pairs: tuple[tuple[int, int], ...]


class Place(Order, frozen=True):
    """Bring an adapter that was kept into pages."""

    row: int
    key: int
    pages: tuple[int, ...]
    after: bool  # the passes under way


class Clear(Order, frozen=True):
    row: int


class Drop(Order, frozen=True):
    """An adapter that was kept is wanted no longer."""

    key: int


class Swap(Order, frozen=True):
    """Copy pages to host memory, or back."""

    out: bool
    pages: tuple[int, ...]
    slots: tuple[int, ...]
    after: bool


AnyOrder = Begin | Decode | Compute | Copies | Place | Clear | Drop | Swap


class Ready(Order, frozen=True):
    """A follower's word that it is about to join the others."""


class Failed(Order, frozen=True):
    """A follower's last word."""

    reason: str


AnyWord = Ready | Failed


def packed(arrays: Mapping[str, Array]) -> dict[str, Packed]:
    return {name: Packed.of(array) for name, array in arrays.items()}


def unpacked(arrays: Mapping[str, Packed]) -> dict[str, Array]:
    return {name: part.array() for name, part in arrays.items()}
