"""What the scheduler and the residency tell whoever counts; by itself it counts nothing.

Called from the engine loop, so a method does next to nothing. Tenants and digests come as they
are: how many of them become labels is the observer's business.
"""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a sequence waits."""

    ADAPTER = "adapter"  # its adapter is on the way to host memory
    FAIRNESS = "fairness"  # its tenant uses its share, and it is others' turn
    HANDOFF = "handoff"  # another engine is to compute its prompt, and has not begun
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


class Side(StrEnum):
    """Of a handoff."""

    GAVE = "gave"  # its pages
    TOOK = "took"


class Handed(StrEnum):
    """How a handoff ended."""

    DONE = "done"  # every page and the first token went over
    FORGONE = "forgone"  # the gateway said so
    LOST = "lost"  # the other engine failed, or the connection did
    EXPIRED = "expired"  # nothing happened for too long
    YIELDED = "yielded"  # its sequence had to give up its pages
    ENDED = "ended"  # its request did first: cancelled, late or failed


@dataclass(frozen=True, slots=True)
class Handoff:
    side: Side
    outcome: Handed
    pages: int  # that went over
    seconds: float  # since they were wanted; 0 where none were
    direct: bool  # from one GPU's memory to another's


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

    def handed(self, handoff: Handoff) -> None:
        """A handoff is over."""

    def wanted(self, digest: str) -> None:
        """A request names this adapter."""

    def loaded(self, digest: str, seconds: float, tier: Tier) -> None:
        """An adapter is in host memory so long after it was asked for, when it was in ``tier``."""

    def evicted(self, digest: str) -> None:
        """An adapter left the pool."""
