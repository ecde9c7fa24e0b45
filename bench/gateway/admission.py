"""Admission and settlement alone, with a real Redis: requests per second of one core."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench.gateway.load import LoadFailed
from bench.gateway.stack import BUDGET_NANO, RATES
from gateway import redis
from gateway.config import Secret
from gateway.errors import QuotaBackendUnavailable
from gateway.identity.principal import Principal
from gateway.ids import new_id
from gateway.limits.lease import Demand, Price
from gateway.limits.limiter import redis_limiter
from gateway.limits.models import Level
from gateway.limits.rules import Allowance, RuleBook, Subject, Use

AT_ONCE = 32
WARM_UP_TRIES = 30
PROMPT, ANSWER = 200, 16
WHO = Principal(
    organisation="org_bench", project="prj_bench", project_name="bench", key="key_bench",
    tenant="bench",
)  # fmt: skip


def rule_book() -> RuleBook:
    """What the gateway of the other measurements has too: three levels, five rates, a budget."""
    levels = (
        (Level.ORGANISATION, WHO.organisation),
        (Level.PROJECT, WHO.project),
        (Level.KEY, WHO.key),
    )
    budget = Allowance(period="month", nano=BUDGET_NANO)
    return RuleBook(
        {Subject(level, name): RATES for level, name in levels},
        {Subject(Level.PROJECT, WHO.project): (budget,)},
    )


async def per_core(redis_url: str, count: int) -> float:
    """Requests admitted and settled per second of this process's CPU."""
    book = rule_book()
    client = redis.connect(Secret(redis_url), timeout_s=5.0)
    limiter = redis_limiter(client, deadline_s=5.0, rules=lambda: book)
    demand = Demand(price=Price(input=1000, cached_input=1000, output=2000), prompt=PROMPT,
                    block=ANSWER, most=ANSWER, slack=0)  # fmt: skip
    use = Use(model="tiny")
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            lease = await limiter.reserve(
                WHO, new_id("req"), PROMPT + ANSWER, use=use, demand=demand
            )
            await limiter.settle(lease, PROMPT + ANSWER, 232)

    watching = asyncio.create_task(limiter.run())
    try:
        await _warm(lambda: limiter.reserve(WHO, new_id("req"), PROMPT, use=use, demand=demand))
        began = time.process_time()
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        return count / (time.process_time() - began)
    finally:
        watching.cancel()
        await limiter.close()


async def _warm(reserve: Callable[[], Awaitable[object]]) -> None:
    """The budget's counter begins with what the ledger says, or with nothing here."""
    for _ in range(WARM_UP_TRIES):
        try:
            await reserve()
        except QuotaBackendUnavailable:
            await asyncio.sleep(1.0)
        else:
            return
    raise LoadFailed("the limit store does not answer")
