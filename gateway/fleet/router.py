"""Which engine runs this request.

Warm first: an engine that holds the adapter and has headroom. Otherwise the rendezvous winner
with headroom, so that cold loads of one adapter land on one engine and an engine that joins or
leaves moves only its own share. Otherwise the least loaded. Pure: the fleet's view is an argument.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Protocol, TypeVar

SATURATED = 0.90  # share of the requests an engine allows us that are open


class Candidate(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def load(self) -> float: ...  # 0 idle, 1 full
    @property
    def resident(self) -> AbstractSet[str]: ...  # digests of adapters on its device


C = TypeVar("C", bound=Candidate)


def choose(members: Sequence[C], digest: str | None) -> C:
    """Pick one member; a digest of None asks for the base alone. ``members`` is not empty."""
    assert members, "choose among at least one engine"
    headroom = [member for member in members if member.load < SATURATED]
    if not headroom or digest is None:
        return min(members, key=lambda member: member.load)
    warm = [member for member in headroom if digest in member.resident]
    if warm:
        return min(warm, key=lambda member: member.load)
    return max(headroom, key=lambda member: _affinity(member.name, digest))


def _affinity(name: str, digest: str) -> bytes:
    return blake2b(f"{name}/{digest}".encode(), digest_size=8).digest()
