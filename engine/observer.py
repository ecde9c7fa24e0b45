"""What the scheduler and the residency tell whoever counts; by itself it counts nothing.

Called from the engine loop, so a method does next to nothing. Tenants and digests come as they
are: how many of them become labels is the observer's business.
"""

from enum import StrEnum


class Cause(StrEnum):
    """Why a sequence waits."""

    ADAPTER = "adapter"  # its adapter is on the way to host memory
    FAIRNESS = "fairness"  # its tenant uses its share, and it is others' turn
    PREFIX = "prefix"  # somebody is computing its beginning right now
    GRAMMAR = "grammar"  # what its answer must match is being compiled
    GRANT = "grant"  # it may not generate before it is paid for
    PAGES = "pages"  # it, or whoever is before it, waits for pages
    CAPACITY = "capacity"  # passes are full: of sequences, or of tokens


class Tier(StrEnum):
    """Where an adapter is."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


class Observer:
    def waited(self, tenant: str, cause: Cause, seconds: float) -> None:
        """A sequence that now runs or is over waited so long for this reason."""

    def found(self, tenant: str, *, prompt: int, cached: int) -> None:
        """A sequence runs for the first time; so many of its prompt's tokens were computed."""

    def verified(self, tenant: str, *, drafts: int, kept: int) -> None:
        """A pass verified so many drafts of one sequence, of which so many were kept."""

    def preempted(self, tenant: str) -> None:
        """A sequence yielded its pages."""

    def swapped(self, *, used: int, out: int = 0, back: int = 0) -> None:
        """So many pages were copied to host memory, or back; so many are there."""

    def wanted(self, digest: str) -> None:
        """A request names this adapter."""

    def loaded(self, digest: str, seconds: float, tier: Tier) -> None:
        """An adapter is in host memory so long after it was asked for, when it was in ``tier``."""

    def evicted(self, digest: str) -> None:
        """An adapter left the pool."""
