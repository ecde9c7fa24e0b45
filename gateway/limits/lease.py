"""Capacity taken for one request, and the seam behind which it is counted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from gateway.identity.principal import Principal
from gateway.limits.bucket import remaining, reset_seconds
from gateway.limits.rules import Rule, RuleBook, Use
from gateway.limits.store import Ask, Kind, Unit, Verdict


class Headroom(msgspec.Struct, frozen=True, kw_only=True):
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
        for unit, limit, left, reset in (
            ("requests", self.limit_requests, self.remaining_requests, self.reset_requests),
            ("tokens", self.limit_tokens, self.remaining_tokens, self.reset_tokens),
        ):
            if limit is not None:
                headers[f"x-ratelimit-limit-{unit}"] = str(limit)
                headers[f"x-ratelimit-remaining-{unit}"] = str(left)
                headers[f"x-ratelimit-reset-{unit}"] = duration(reset)
        return headers


def headroom_of(asks: Sequence[Ask], verdict: Verdict, now: datetime) -> Headroom:
    """Of each unit, the limit that has the smallest share left."""
    seconds = now.timestamp()
    # Of each: the share that is left, the limit, what is left of it, seconds until it is whole.
    requests: tuple[float, int, int, float] | None = None
    tokens: tuple[float, int, int, float] | None = None
    for ask, level in zip(asks, verdict.levels, strict=True):
        limit, unit = ask.limit, ask.unit
        if unit is Unit.TOKENS:
            best = tokens
        elif unit is Unit.REQUESTS:
            best = requests
        else:
            continue
        is_rate = ask.kind is Kind.RATE
        left = remaining(level, limit) if is_rate else max(0, limit - level)
        share = left / limit if limit else 0.0
        if best is not None and share > best[0]:
            continue
        reset = reset_seconds(level, limit) if is_rate else ask.ends_ms / 1000 - seconds
        fact = (share, limit, left, max(0.0, reset))
        if best is not None and fact >= best:
            continue
        if unit is Unit.TOKENS:
            tokens = fact
        else:
            requests = fact
    return Headroom(
        limit_requests=requests[1] if requests else None,
        remaining_requests=requests[2] if requests else None,
        reset_requests=requests[3] if requests else 0.0,
        limit_tokens=tokens[1] if tokens else None,
        remaining_tokens=tokens[2] if tokens else None,
        reset_tokens=tokens[3] if tokens else 0.0,
    )


def duration(seconds: float) -> str:
    """As OpenAI writes it, rounded up to milliseconds: 0s, 12ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(round(seconds * 1000, 3))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Pico-dollars per token; see ``gateway.usage.pricing``."""

    input: int
    cached_input: int
    output: int

    @property
    def is_free(self) -> bool:
        return not (self.input or self.cached_input or self.output)

    def worst(self, prompt: int, output: int) -> int:
        """The most that so many tokens can cost, in nano-dollars."""
        pico = prompt * max(self.input, self.cached_input) + output * self.output
        return -(-pico // 1000)


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may cost: known once its prompt is."""

    price: Price | None  # None: the model has none
    prompt: int  # tokens
    block: int  # output tokens to pay for at first
    most: int  # output tokens it could use in all
    slack: int = 1  # output tokens that may come beyond what was granted


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Taken by ``reserve``; given back to the token by ``settle``, in any outcome, once."""

    request: str
    principal: Principal
    tokens: int  # reserved: prompt + the most that may be generated
    name: str = ""
    at: datetime | None = None
    headroom: Headroom = msgspec.field(default_factory=Headroom)
    slots: tuple[str, ...] = ()  # counters whose slots it holds
    purses: tuple[tuple[Rule, Ask], ...] = ()  # budgets it pays from
    money: int = 0  # nano-dollars reserved at first, of each budget
    use: Use = msgspec.field(default_factory=Use)
    book: RuleBook | None = None  # that held when it was taken


@dataclass(frozen=True, slots=True)
class More:
    """Money for a running request; 0, and why, where there is none."""

    nano: int
    code: str = ""
    message: str = ""


class Limiter(Protocol):
    """Every limit that holds for a request: all are taken, or none.

    ``reserve`` raises LimitExceeded (with the exact wait, and the ``x-ratelimit-*`` headers) or
    QuotaBackendUnavailable. ``settle`` gives back what was not used; doing it twice changes
    nothing. ``headroom`` takes nothing: it is for the answers to requests that were refused
    before they were counted.
    """

    async def reserve(
        self,
        principal: Principal,
        request: str,
        tokens: int,
        *,
        use: Use = ...,
        demand: Demand | None = None,
    ) -> Lease: ...

    async def extend(self, lease: Lease, *, held: int, want: int, least: int) -> More: ...

    async def settle(self, lease: Lease, used: int, nano: int = 0) -> None: ...

    async def headroom(self, principal: Principal, use: Use = ...) -> Headroom: ...

    def tokens_within(self, principal: Principal, use: Use = ...) -> int | None:
        """The smallest limit of tokens; None: there is none."""

    async def close(self) -> None: ...
