"""Capacity taken for one request, and the seam behind which it is counted."""

from dataclasses import dataclass, field
from typing import Protocol

from gateway.identity.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What OpenAI's ``x-ratelimit-*`` headers say. None: that limit is not set."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests: float = 0.0  # seconds until the limit is whole again
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Taken by ``reserve``; given back to the token by ``settle``, in any outcome, once."""

    request: str
    principal: Principal
    tokens: int  # reserved: prompt + the most that may be generated
    headroom: Headroom = field(default_factory=Headroom)


class Limiter(Protocol):
    """Requests and tokens per minute per key: all levels are taken, or none.

    ``reserve`` raises RequestsLimited, TokensLimited, NeverWithinTokenLimit (each with its exact
    wait and the ``x-ratelimit-*`` headers) or QuotaBackendUnavailable.
    """

    async def reserve(self, principal: Principal, request: str, tokens: int) -> Lease: ...

    async def settle(self, lease: Lease, used: int) -> None: ...

    async def close(self) -> None: ...
