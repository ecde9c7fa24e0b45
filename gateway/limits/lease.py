"""Capacity taken for one request, and the seam behind which it is counted."""

import math
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

    def headers(self) -> dict[str, str]:
        """The ``x-ratelimit-*`` headers of an answer, for the limits that are set."""
        headers = {}
        for unit, limit, remaining, reset in (
            ("requests", self.limit_requests, self.remaining_requests, self.reset_requests),
            ("tokens", self.limit_tokens, self.remaining_tokens, self.reset_tokens),
        ):
            if limit is not None:
                headers[f"x-ratelimit-limit-{unit}"] = str(limit)
                headers[f"x-ratelimit-remaining-{unit}"] = str(remaining)
                headers[f"x-ratelimit-reset-{unit}"] = duration(reset)
        return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it, rounded up to milliseconds: 0s, 12ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(round(seconds * 1000, 3))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Taken by ``reserve``; given back to the token by ``settle``, in any outcome, once."""

    request: str
    principal: Principal
    tokens: int  # reserved: prompt + the most that may be generated
    headroom: Headroom = field(default_factory=Headroom)


class Limiter(Protocol):
    """Requests and tokens per minute per key: all levels are taken, or none.

    ``reserve`` raises RequestsLimited, TokensLimited or NeverWithinTokenLimit (with the exact
    wait and the ``x-ratelimit-*`` headers). ``settle`` gives back what was not used; doing it
    twice changes nothing. ``headroom`` takes nothing: it is for the answers to requests that
    were refused before they were counted.
    """

    async def reserve(self, principal: Principal, request: str, tokens: int) -> Lease: ...

    async def settle(self, lease: Lease, used: int) -> None: ...

    async def headroom(self, principal: Principal) -> Headroom: ...

    async def close(self) -> None: ...
