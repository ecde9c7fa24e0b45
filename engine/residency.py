"""Which adapter is where: on disk, in host memory, or in pages of the pool.

Two seams keep this file free of torch: a ``HostCache`` brings adapters from disk into host
memory in its own threads, an ``AdapterMemory`` lays one out in pages of the pool.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

P = TypeVar("P")  # an adapter in host memory, opaque here
P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)


class HostCache(Protocol[P_co]):
    """The tier below the pool. Called from the engine loop; never blocks."""

    def request(self, digest: str) -> None:
        """Start bringing an adapter into host memory. Idempotent; after an error, tries again."""

    def poll(self, digest: str) -> P_co | Exception | None:
        """The adapter, why it cannot be had, or None while it is on its way."""


class AdapterMemory(Protocol[P_contra]):
    """Adapters inside the page pool. Belongs to the engine loop's thread."""

    def pages_for(self, packed: P_contra) -> int:
        """Whole pages it takes."""

    def place(self, row: int, packed: P_contra, pages: Sequence[int]) -> None:
        """Copy into ``pages`` and point table row ``row`` at them. Any row: capacity grows.

        Raises AdapterUnusable when this adapter cannot be laid out.
        """

    def clear(self, row: int) -> None:
        """Forget a row. No pass launched later refers to it until it is placed again."""
