"""Admission: everything that limits a request is taken at once, or it is refused, with the reason.

The refusal names the level whose limit binds, what is left of it and the exact wait. Where waiting
cannot help, ``x-should-retry`` says so: official clients would otherwise ask again and again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import structs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import redis as names
from gateway.errors import QuotaBackendUnavailable
from gateway.identity.principal import Principal
from gateway.limits.degrading import DegradingStore, unavailable
from gateway.limits.lease import Demand, Headroom, Lease, More, headroom_of
from gateway.limits.memory import MemoryStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.refusal import budget_code, budget_message, refusal, too_large, unpriced
from gateway.limits.rules import Rule, RuleBook, Use
from gateway.limits.seeding import MOST_TRIES, Seeder, Spending, nothing_spent
from gateway.limits.store import RENEW_S, Ask, Kind, Open, Purse, Store, Unit, Verdict

log = logging.getLogger(__name__)

ANY_USE = Use()
MOST_UNSETTLED = 100_000  # the reservations of others expire
WATCH_S = 1.0
PRUNE_S = 60.0
Costs = Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]  # of requests in the ledger


async def nothing_known(requests: Sequence[str]) -> Mapping[str, int]:
    return {}


def utc_now() -> datetime:
    return datetime.now(UTC)


class _Settlement(msgspec.Struct, frozen=True):
    """One that the store has yet to hear of."""

    lease: str
    tokens: int
    nano: int
    lost: tuple[Ask, ...] = ()
    orphan: bool = False


class RateLimiter:
    """A ``Limiter`` over any store. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        rules: Callable[[], RuleBook] = RuleBook,
        spending: Spending = nothing_spent,
        costs: Costs = nothing_known,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._rules = rules
        self._costs = costs
        self._now = now
        self._open: dict[str, Lease] = {}
        self._held: dict[str, int] = {}  # lease -> what it holds of each budget by now
        self._unsettled: deque[_Settlement] = deque(maxlen=MOST_UNSETTLED)
        self._purses: dict[str, Ask] = {}  # budgets met since the last look, by counter
        self._seeder = Seeder(store, spending, self._holdings)

    @property
    def open(self) -> int:
        """Requests that hold something."""
        return sum(1 for lease in self._open.values() if lease.name)

    def open_of(self, organisation: str) -> list[Lease]:
        """Of this gateway."""
        held = (each for each in self._open.values() if each.name)
        return [each for each in held if each.principal.organisation == organisation]

    def held_by(self, lease: Lease) -> int:
        """Nano-dollars, of each budget it pays from."""
        return self._held.get(lease.name, 0)

    async def reserve(
        self,
        principal: Principal,
        request: str,
        tokens: int,
        *,
        use: Use = ANY_USE,
        demand: Demand | None = None,
    ) -> Lease:
        now, book = self._now(), self._rules()
        rules, asks = list[Rule](), list[Ask]()
        slots, purses, expiring = list[str](), list[tuple[Rule, Ask]](), False
        over: int | None = None  # more than fits at all
        costs = _costs(tokens, demand)
        for rule in book.of(principal, use):
            if (wanted := costs.get(rule.unit)) is None:
                continue
            ask = rule.ask(wanted[0], now, least=wanted[1])
            if ask.kind is Kind.MONEY:
                purses.append((rule, ask))
                expiring = expiring or rule.is_expiring(now)
            elif ask.cost > ask.limit and over is None:
                over = len(asks)
            elif ask.kind is Kind.SLOTS:
                slots.append(ask.key)
            rules.append(rule)
            asks.append(ask)
        if not asks:
            bare = Lease(request=request, principal=principal, tokens=tokens, at=now, use=use,
                         book=book)  # fmt: skip
            self._open[request] = bare  # a budget may come to hold while it runs
            return bare
        if over is not None:
            raise too_large(rules[over], asks[over], await self._look(rules, now))
        if purses and demand is not None and demand.price is None:
            raise unpriced(use.model)
        if expiring:
            raise QuotaBackendUnavailable(
                "A credit has just expired: what is left is being worked out.",
                retry_after=WATCH_S,
            )
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
                slots=tuple(slots),
                purses=tuple(purses),
                money=verdict.money,
                use=use,
                book=book,
            )
        )

    async def extend(self, lease: Lease, *, held: int, want: int, least: int) -> More:
        """Between ``least`` and ``want`` nano-dollars more, of every budget; or none of any."""
        asks = [structs.replace(ask, cost=want, least=least) for ask in self._as_they_are(lease)]
        found = await self._store.extend(asks, lease.name, held=held)
        if found.unseeded:
            rules = [rule for rule, _ in lease.purses]
            await self._seeder.seed(rules, asks, lease.at or self._now())
            found = await self._store.extend(asks, lease.name, held=held)
        if found.money:
            self._held[lease.name] = held + found.money
            return More(found.money)
        rule = lease.purses[found.binding][0]
        return More(0, budget_code(rule), budget_message(rule))

    async def settle(self, lease: Lease, used: int, nano: int = 0) -> None:
        await self._seeder.entered()
        if self._open.pop(lease.request, None) is None:
            return
        joined = self._joined(lease)
        if lease.name:
            self._held.pop(lease.name, None)
            lost = tuple(ask for _, ask in lease.purses)
            await self._settle(_Settlement(lease.name, used, nano, lost))
        if joined:
            name = lease_name(lease.principal.organisation, lease.request)
            await self._settle(_Settlement(name, 0, nano, joined))

    async def settle_orphan(
        self, principal: Principal, request: str, use: Use, at: datetime, *, used: int, nano: int
    ) -> None:
        """A request whose gateway died: what its lease still holds goes back, once."""
        budgets = [r for r in self._rules().of(principal, use) if r.kind is Kind.MONEY]
        lost = tuple(rule.ask(0, at) for rule in budgets)
        name = lease_name(principal.organisation, request)
        await self._settle(_Settlement(name, used, nano, lost, orphan=True))

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

    async def purses(self) -> list[Purse]:
        """Every counter of money there is."""
        return await self._store.purses()

    async def run(self) -> None:
        """Hold what runs, for ever. A store that is away is asked again later."""
        second = 0
        while True:
            await asyncio.sleep(WATCH_S)
            second += 1
            try:
                await self.watch()
                if second % RENEW_S == 0:
                    await self.renew()
                if second % PRUNE_S == 0:
                    await self.prune()
            except (RedisError, OSError, QuotaBackendUnavailable) as error:
                log.info("limits not renewed: %s", error)

    async def watch(self) -> None:
        """Tell a store that lost everything what runs, and any store what it missed."""
        if await self._store.watch():
            log.warning("the limit store began anew: what runs is entered again")
            purses = {ask.key: ask for each in self._open.values() for _, ask in each.purses}
            await self._seeder.enter(list(purses.values()))
        await self._settle_late()

    async def renew(self) -> None:
        await self._settle_late()
        held = [(lease.name, lease.slots) for lease in self._open.values() if lease.slots]
        if held:
            await self._store.renew(held)

    async def prune(self) -> None:
        """Reservations that nobody settled in time are charged as the ledger says, or let go."""
        met, self._purses = self._purses, {}
        for ask in met.values():
            late = {name.rpartition(":")[2]: name for name in await self._store.overdue(ask.key)}
            charged = await self._costs(list(late)) if late else {}
            for request, name in late.items():
                if request in charged:
                    owed = charged[request]
                    await self._settle(_Settlement(name, 0, owed, (ask,), orphan=True))
                else:
                    await self._store.release(ask.key, name)

    @property
    def degraded(self) -> bool:
        """The shared store is lost, and each gateway counts a share."""
        return isinstance(self._store, DegradingStore) and self._store.degraded

    @property
    def local_grants(self) -> int:
        """What was granted from the local share so far."""
        return self._store.local_grants if isinstance(self._store, DegradingStore) else 0

    async def close(self) -> None:
        await self._store.close()

    async def _settle(self, each: _Settlement) -> bool:
        told = await self._store.settle(
            each.lease, tokens=each.tokens, money=each.nano, lost=each.lost, orphan=each.orphan
        )
        if not told:  # the next time it may have heard this one: then nothing is to be charged
            self._unsettled.append(structs.replace(each, orphan=True))
        return told

    async def _settle_late(self) -> None:
        """What the store missed. A store that has forgotten the lease reads the ledger anyway."""
        for _ in range(len(self._unsettled)):
            if not await self._settle(self._unsettled.popleft()):
                return  # it is away still

    def _as_they_are(self, lease: Lease) -> Iterator[Ask]:
        """Its budgets may have been changed since it was admitted: a smaller one cuts it, and one
        that holds no more does not. Credits may have expired, or come."""
        now = self._now()
        holding = {rule.name: rule for rule in self._rules().of(lease.principal, lease.use)}
        for rule, ask in lease.purses:
            held = holding.get(rule.name)
            if held is None:
                yield structs.replace(ask, soft=True)
            else:
                yield structs.replace(ask, limit=held.ask(0, now).limit, soft=held.soft)

    def _joined(self, lease: Lease) -> tuple[Ask, ...]:
        """Budgets that have come to hold for a request since it was admitted. It is not cut for
        them, and they count it all the same."""
        book = self._rules()
        if book is lease.book or lease.at is None:
            return ()
        known = {ask.key for _, ask in lease.purses}
        asks = (
            rule.ask(0, lease.at)
            for rule in book.of(lease.principal, lease.use)
            if rule.kind is Kind.MONEY
        )
        return tuple(ask for ask in asks if ask.key not in known)

    def _holdings(self, keys: Collection[str]) -> Mapping[str, list[Open]]:
        found: dict[str, list[Open]] = {key: [] for key in keys}
        for lease in self._open.values():
            for _, ask in lease.purses:
                if ask.key in found:
                    found[ask.key].append(Open(lease.name, self._held[lease.name]))
            for ask in self._joined(lease):
                if ask.key in found:
                    name = lease_name(lease.principal.organisation, lease.request)
                    found[ask.key].append(Open(name, 0))
        return found

    def _remember(self, lease: Lease) -> Lease:
        self._open[lease.request] = lease
        if lease.purses:
            self._held[lease.name] = lease.money
        for _, ask in lease.purses:
            self._purses[ask.key] = ask
        return lease

    async def _take(
        self, rules: Sequence[Rule], asks: Sequence[Ask], name: str | None, now: datetime
    ) -> Verdict:
        for _ in range(MOST_TRIES):
            verdict = await self._store.take(asks, name)
            if not (missing := verdict.unseeded):
                return verdict
            await self._seeder.seed([rules[i] for i in missing], [asks[i] for i in missing], now)
        raise unavailable()

    async def _look(self, rules: Sequence[Rule], now: datetime) -> Headroom:
        """A limit of nothing has no counter."""
        asks = [rule.ask(0, now) for rule in rules if rule.kind is not Kind.MONEY]
        counted = [ask for ask in asks if ask.limit]
        verdict = await self._store.take(counted, None) if counted else Verdict(0, 0, [], [])
        found = iter(verdict.levels)
        levels = [next(found) if ask.limit else 0 for ask in asks]
        return headroom_of(asks, structs.replace(verdict, levels=levels), now)


def memory_limiter(**more: object) -> RateLimiter:
    return RateLimiter(MemoryStore(), **more)  # type: ignore[arg-type]


def redis_limiter(
    redis: Redis, *, deadline_s: float, recovery_s: float = 0.0, **more: object
) -> RateLimiter:
    """Closes the client when it is closed. Without Redis it goes on with a local share.

    ``recovery_s``: within it every gateway tells a Redis that began empty what it knows.
    """
    shared = RedisStore(redis, recovery_ms=int(recovery_s * 1000))
    store = DegradingStore(shared, deadline_s=deadline_s, replicas=lambda: shared.gateways)
    return RateLimiter(store, **more)  # type: ignore[arg-type]


def lease_name(organisation: str, request: str) -> str:
    return names.key(organisation, "lease", request)


def _costs(tokens: int, demand: Demand | None) -> dict[Unit, tuple[int, int]]:
    """Of one request, by what is counted: what it takes, and the least that will do. What is not
    here it takes nothing of."""
    costs = {Unit.REQUESTS: (1, 0), Unit.TOKENS: (tokens, 0)}
    if demand is None:
        return costs
    costs[Unit.CONCURRENCY] = (1, 0)
    if (price := demand.price) is None:
        costs[Unit.MONEY] = (1, 1)
    elif not price.is_free:  # else there is nothing that a budget could save
        cost = price.worst(demand.prompt, demand.block + demand.slack)
        least = price.worst(demand.prompt, 1 + demand.slack)
        costs[Unit.MONEY] = (max(1, cost), max(1, least))
    return costs
