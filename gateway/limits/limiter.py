"""Admission: everything that limits a request is taken at once, or it is refused, with the reason.

The refusal names the level whose limit binds, what is left of it and the exact wait. Where waiting
cannot help, ``x-should-retry`` says so: official clients would otherwise ask again and again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import redis as names
from gateway.identity.principal import Principal
from gateway.limits.bucket import remaining, reset_seconds
from gateway.limits.degrading import DegradingStore
from gateway.limits.lease import Demand, Headroom, Lease, More
from gateway.limits.memory import MemoryStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.refusal import budget_code, budget_message, refusal, too_large, unpriced
from gateway.limits.rules import Rule, RuleBook, Use
from gateway.limits.store import RENEW_S, Ask, Kind, Open, Store, Unit, Verdict

log = logging.getLogger(__name__)

ANY_USE = Use()
MOST_UNSETTLED = 100_000  # the reservations of others expire
PRUNE_EVERY = 4  # renewals between two looks for reservations that expired
Spending = Callable[[Rule, datetime], Awaitable[int]]  # what the ledger says, for this period


async def nothing_spent(rule: Rule, now: datetime) -> int:
    return 0


def utc_now() -> datetime:
    return datetime.now(UTC)


class RateLimiter:
    """A ``Limiter`` over any store. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        rules: Callable[[], RuleBook] = RuleBook,
        spending: Spending = nothing_spent,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._rules = rules
        self._spending = spending
        self._now = now
        self._open: dict[str, Lease] = {}
        self._unsettled: deque[tuple[str, int, int]] = deque(maxlen=MOST_UNSETTLED)
        self._purses: dict[str, Rule] = {}  # budgets met since the last look, by counter
        self._seeding: dict[str, asyncio.Task[None]] = {}

    @property
    def open(self) -> int:
        """Requests that hold something."""
        return len(self._open)

    async def reserve(
        self,
        principal: Principal,
        request: str,
        tokens: int,
        *,
        use: Use = ANY_USE,
        demand: Demand | None = None,
    ) -> Lease:
        now = self._now()
        rules, asks = [], []
        for rule in self._rules().of(principal, use):
            if (ask := _wanted(rule, tokens, demand, now)) is not None:
                rules.append(rule)
                asks.append(ask)
        if not asks:
            return Lease(request=request, principal=principal, tokens=tokens, at=now)
        for rule, ask in zip(rules, asks, strict=True):
            if ask.kind is not Kind.MONEY and ask.cost > ask.limit:
                headroom = await self._look(rules, now)
                raise too_large(rule, ask, headroom)
        if demand is not None and demand.price is None and any(map(_is_purse, asks)):
            raise unpriced(use.model)
        name = lease_name(principal.organisation, request)
        verdict = await self._take(rules, asks, name, now)
        headroom = headroom_of(asks, verdict, now)
        if verdict.wait_ms > 0:
            raise refusal(rules[verdict.binding], asks[verdict.binding], verdict, headroom)
        return self._remember(
            Lease(
                request=request,
                principal=principal,
                tokens=tokens,
                name=name,
                at=now,
                headroom=headroom,
                slots=tuple(ask.key for ask in asks if ask.kind is Kind.SLOTS),
                purses=tuple(
                    (rule, ask) for rule, ask in zip(rules, asks, strict=True) if _is_purse(ask)
                ),
                money=verdict.money,
            )
        )

    async def extend(self, lease: Lease, *, held: int, want: int, least: int) -> More:
        """Between ``least`` and ``want`` nano-dollars more, of every budget; or none of any."""
        asks = [
            Ask(a.key, a.kind, a.unit, rule.limit, want, least, a.ends_ms, a.soft)
            for (rule, a) in lease.purses
        ]
        found = await self._store.extend(asks, lease.name, held=held)
        if found.unseeded:
            await self._seed([rule for rule, _ in lease.purses], asks, lease.at or self._now())
            found = await self._store.extend(asks, lease.name, held=held)
        if found.money:
            return More(found.money)
        rule = lease.purses[found.binding][0]
        return More(0, budget_code(rule), budget_message(rule))

    async def settle(self, lease: Lease, used: int, nano: int = 0) -> None:
        if self._open.pop(lease.request, None) is None:
            return
        lost = [ask for _, ask in lease.purses]
        if not await self._store.settle(lease.name, tokens=used, money=nano, lost=lost):
            self._unsettled.append((lease.name, used, nano))

    async def settle_orphan(self, organisation: str, request: str, used: int, nano: int) -> None:
        """A request whose gateway died: what its lease still holds goes back."""
        await self._store.settle(lease_name(organisation, request), tokens=used, money=nano)

    async def headroom(self, principal: Principal, use: Use = ANY_USE) -> Headroom:
        rules = [r for r in self._rules().of(principal, use) if r.kind in (Kind.RATE, Kind.COUNT)]
        return await self._look(rules, self._now())

    def tokens_within(self, principal: Principal, use: Use = ANY_USE) -> int | None:
        rules = self._rules().of(principal, use)
        return min((rule.limit for rule in rules if rule.unit is Unit.TOKENS), default=None)

    async def reservations(self, rule: Rule) -> list[Open]:
        """Open ones of a budget in its present period."""
        return await self._store.reservations(rule.ask(0, self._now()).key)

    async def levels(self, rules: Sequence[Rule]) -> Verdict:
        """How far each is used, budgets too."""
        now = self._now()
        asks = [rule.ask(0, now) for rule in rules]
        return await self._take(rules, asks, None, now)

    async def run(self) -> None:
        """Hold the slots of what runs, for ever. A store that is away is asked again later."""
        turn = 0
        while True:
            await asyncio.sleep(RENEW_S)
            turn += 1
            try:
                await self.renew()
                if turn % PRUNE_EVERY == 0:
                    purses, self._purses = self._purses, {}
                    await self._store.prune(list(purses))
            except (RedisError, OSError) as error:
                log.info("slots not renewed: %s", error)

    async def renew(self) -> None:
        await self._settle_late()
        held = [(lease.name, lease.slots) for lease in self._open.values() if lease.slots]
        if held:
            await self._store.renew(held)

    @property
    def degraded(self) -> bool:
        """The shared store is lost, and each gateway counts a share."""
        return isinstance(self._store, DegradingStore) and self._store.degraded

    async def close(self) -> None:
        await self._store.close()

    async def _settle_late(self) -> None:
        """What the store missed. A store that has forgotten the lease reads the ledger anyway."""
        waiting, self._unsettled = self._unsettled, deque(maxlen=MOST_UNSETTLED)
        for name, used, nano in waiting:
            if not await self._store.settle(name, tokens=used, money=nano):
                self._unsettled.append((name, used, nano))

    def _remember(self, lease: Lease) -> Lease:
        self._open[lease.request] = lease
        for rule, ask in lease.purses:
            self._purses[ask.key] = rule
        return lease

    async def _take(
        self, rules: Sequence[Rule], asks: Sequence[Ask], name: str | None, now: datetime
    ) -> Verdict:
        verdict = await self._store.take(asks, name)
        while verdict.unseeded:
            missing = verdict.unseeded
            await self._seed([rules[i] for i in missing], [asks[i] for i in missing], now)
            verdict = await self._store.take(asks, name)
        return verdict

    async def _seed(self, rules: Sequence[Rule], asks: Sequence[Ask], now: datetime) -> None:
        """Counters of money begin with what the ledger says; many who ask at once read it once."""
        for rule, ask in zip(rules, asks, strict=True):
            task = self._seeding.get(ask.key)
            if task is None:
                task = asyncio.create_task(self._seed_one(rule, ask, now))
                self._seeding[ask.key] = task
                task.add_done_callback(partial(self._seeded, ask.key))
            await asyncio.shield(task)

    def _seeded(self, key: str, _task: asyncio.Task[None]) -> None:
        self._seeding.pop(key, None)

    async def _seed_one(self, rule: Rule, ask: Ask, now: datetime) -> None:
        await self._store.seed(ask, await self._spending(rule, now))

    async def _look(self, rules: Sequence[Rule], now: datetime) -> Headroom:
        asks = [rule.ask(0, now) for rule in rules if rule.limit and rule.kind is not Kind.MONEY]
        return headroom_of(asks, await self._store.take(asks, None), now) if asks else Headroom()


def memory_limiter(**more: object) -> RateLimiter:
    return RateLimiter(MemoryStore(), **more)  # type: ignore[arg-type]


def redis_limiter(redis: Redis, *, deadline_s: float, **more: object) -> RateLimiter:
    """Closes the client when it is closed. Without Redis it goes on with a local share."""
    shared = RedisStore(redis)
    store = DegradingStore(shared, deadline_s=deadline_s, replicas=lambda: shared.gateways)
    return RateLimiter(store, **more)  # type: ignore[arg-type]


def lease_name(organisation: str, request: str) -> str:
    return names.key(organisation, "lease", request)


def _is_purse(ask: Ask) -> bool:
    return ask.kind is Kind.MONEY


def _wanted(rule: Rule, tokens: int, demand: Demand | None, now: datetime) -> Ask | None:
    """None: this request takes nothing of it."""
    if rule.unit is Unit.REQUESTS:
        return rule.ask(1, now)
    if rule.unit is Unit.TOKENS:
        return rule.ask(tokens, now)
    if demand is None:
        return None
    if rule.unit is Unit.CONCURRENCY:
        return rule.ask(1, now)
    if demand.price is None:
        return rule.ask(1, now, least=1)
    cost = demand.price.worst(demand.prompt, demand.block + demand.slack)
    least = demand.price.worst(demand.prompt, 1 + demand.slack)
    return rule.ask(max(1, cost), now, least=max(1, least))


def headroom_of(asks: Sequence[Ask], verdict: Verdict, now: datetime) -> Headroom:
    """Of each unit, the limit that has the smallest share left."""
    facts: dict[Unit, tuple[float, int, int, float]] = {}
    for ask, level in zip(asks, verdict.levels, strict=True):
        if ask.unit not in (Unit.REQUESTS, Unit.TOKENS):
            continue
        if ask.kind is Kind.RATE:
            left, reset = remaining(level, ask.limit), reset_seconds(level, ask.limit)
        else:
            left, reset = max(0, ask.limit - level), ask.ends_ms / 1000 - now.timestamp()
        fact = (left / ask.limit if ask.limit else 0.0, ask.limit, left, max(0.0, reset))
        facts[ask.unit] = min(fact, facts.get(ask.unit, fact))
    _, limit_requests, left_requests, reset_requests = facts.get(
        Unit.REQUESTS, (0.0, None, None, 0.0)
    )
    _, limit_tokens, left_tokens, reset_tokens = facts.get(Unit.TOKENS, (0.0, None, None, 0.0))
    return Headroom(
        limit_requests=limit_requests,
        remaining_requests=left_requests,
        reset_requests=reset_requests,
        limit_tokens=limit_tokens,
        remaining_tokens=left_tokens,
        reset_tokens=reset_tokens,
    )
