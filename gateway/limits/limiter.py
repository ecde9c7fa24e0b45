"""Requests and tokens per minute of each key: reserved together, or refused with the exact wait."""

from redis.asyncio import Redis

from gateway import redis as names
from gateway.errors import NeverWithinTokenLimit, RequestsLimited, TokensLimited
from gateway.identity.principal import Principal
from gateway.limits.bucket import Ask, BucketStore, Verdict, remaining, reset_seconds
from gateway.limits.degrading import DegradingBuckets
from gateway.limits.lease import Headroom, Lease, duration
from gateway.limits.memory import MemoryBuckets
from gateway.limits.redis_buckets import RedisBuckets

REQUESTS, TOKENS = "requests", "tokens"


class RateLimiter:
    """A ``Limiter`` over any bucket store."""

    def __init__(self, buckets: BucketStore) -> None:
        self._buckets = buckets

    async def reserve(self, principal: Principal, request: str, tokens: int) -> Lease:
        limit = principal.tokens_per_minute
        if limit is not None and tokens > limit:
            headroom = await self.headroom(principal)
            raise NeverWithinTokenLimit(
                f"Request too large for {principal.key} on tokens per minute: "
                f"limit {limit}, requested {tokens}. Ask for fewer tokens.",
                headers=headroom.headers(),
            )
        asks = _asks(principal, requests=1, tokens=tokens)
        if not asks:
            return Lease(request=request, principal=principal, tokens=tokens)
        lease = _lease_name(principal, request) if limit is not None else None
        verdict = await self._buckets.take(asks, lease)
        headroom = _headroom(asks, verdict)
        if verdict.wait_ms > 0:
            raise _refusal(principal, asks[verdict.binding], verdict, headroom)
        return Lease(request=request, principal=principal, tokens=tokens, headroom=headroom)

    async def settle(self, lease: Lease, used: int) -> None:
        principal = lease.principal
        if principal.tokens_per_minute is not None:
            ask = Ask(_bucket(principal, TOKENS), principal.tokens_per_minute, used)
            await self._buckets.settle(ask, _lease_name(principal, lease.request))

    async def headroom(self, principal: Principal) -> Headroom:
        asks = _asks(principal, requests=0, tokens=0)
        return _headroom(asks, await self._buckets.take(asks, None)) if asks else Headroom()

    @property
    def degraded(self) -> bool:
        """The shared store is lost, and each gateway counts a share."""
        return isinstance(self._buckets, DegradingBuckets) and self._buckets.degraded

    async def close(self) -> None:
        await self._buckets.close()


def memory_limiter() -> RateLimiter:
    return RateLimiter(MemoryBuckets())


def redis_limiter(redis: Redis, *, deadline_s: float) -> RateLimiter:
    """Closes the client when it is closed. Without Redis it goes on with a local share."""
    shared = RedisBuckets(redis)
    return RateLimiter(
        DegradingBuckets(shared, deadline_s=deadline_s, replicas=lambda: shared.gateways)
    )


def _asks(principal: Principal, *, requests: int, tokens: int) -> list[Ask]:
    """Tokens last: they are what a lease holds."""
    asks = []
    if principal.requests_per_minute is not None:
        asks.append(Ask(_bucket(principal, REQUESTS), principal.requests_per_minute, requests))
    if principal.tokens_per_minute is not None:
        asks.append(Ask(_bucket(principal, TOKENS), principal.tokens_per_minute, tokens))
    return asks


def _bucket(principal: Principal, unit: str) -> str:
    return names.key(principal.organisation, principal.key, unit)


def _lease_name(principal: Principal, request: str) -> str:
    return names.key(principal.organisation, "lease", request)


def _headroom(asks: list[Ask], verdict: Verdict) -> Headroom:
    """Each limit that is set, with what is left of it."""
    facts: dict[str, tuple[int, int, float]] = {}
    for ask, level in zip(asks, verdict.levels, strict=True):
        unit = ask.bucket.rpartition(":")[2]
        facts[unit] = ask.limit, remaining(level, ask.limit), reset_seconds(level, ask.limit)
    limit_requests, remaining_requests, reset_requests = facts.get(REQUESTS, (None, None, 0.0))
    limit_tokens, remaining_tokens, reset_tokens = facts.get(TOKENS, (None, None, 0.0))
    return Headroom(
        limit_requests=limit_requests,
        remaining_requests=remaining_requests,
        reset_requests=reset_requests,
        limit_tokens=limit_tokens,
        remaining_tokens=remaining_tokens,
        reset_tokens=reset_tokens,
    )


def _refusal(
    principal: Principal, ask: Ask, verdict: Verdict, headroom: Headroom
) -> RequestsLimited | TokensLimited:
    wait = verdict.wait_ms / 1000
    is_requests = ask.bucket.endswith(REQUESTS)
    unit, kind = (REQUESTS, RequestsLimited) if is_requests else (TOKENS, TokensLimited)
    left = headroom.remaining_requests if is_requests else headroom.remaining_tokens
    return kind(
        f"Rate limit reached for {principal.key} on {unit} per minute: limit {ask.limit}, "
        f"remaining {left}, requested {ask.cost}. Try again in {duration(wait)}.",
        retry_after=wait,
        headers=headroom.headers(),
    )
