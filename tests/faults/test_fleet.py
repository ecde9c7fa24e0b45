"""Two gateways before two engines, as real processes that share a database and Redis alone.

Engines are found in Redis, killed, stopped and drained under load; the books are checked.
"""

import asyncio
import random
import signal

import pytest
import redis

from gateway.cli.drain import run as drain
from tests.faults.pair import SILENCE_S, pair


@pytest.mark.slow
async def test_engines_killed_stopped_and_drained_under_load_lose_nothing(
    tmp_path, redis_url, postgres, capsys
):
    url = await asyncio.to_thread(postgres.create)
    async with pair(tmp_path, redis_url, url) as both:
        rng = random.Random(1)
        async with both.rigs[0].load(3, rng), both.rigs[1].load(3, rng):
            for rig in both.rigs:
                await rig.streaming()
            await both.all_up()
            redis.Redis.from_url(redis_url).flushall()  # engines say again that they are there
            await both.engines[0].end(signal.SIGKILL)
            for rig in both.rigs:
                await rig.streaming()  # by the other one
            await both.rigs[0].start(both.engines[0])
            await both.all_up()
            both.engines[1].send(signal.SIGSTOP)  # half dead: its connections stay open
            await asyncio.sleep(SILENCE_S + 1.5)
            for rig in both.rigs:
                await rig.streaming()
            both.engines[1].send(signal.SIGCONT)
            await both.all_up()
            before = [len(rig.refused) for rig in both.rigs]
            options = ["engine", "wait", "settings", "data_dir", "database_url", "redis_url"]
            values = [both.addresses[0], 30.0, None, None, None, None]
            told = type("Arguments", (), dict(zip(options, values, strict=True)))
            assert await asyncio.to_thread(drain, told) == 0
            assert "has left: drained" in capsys.readouterr().err
            for rig in both.rigs:
                await rig.streaming()
            assert [len(rig.refused) for rig in both.rigs] == before  # nobody noticed
        await both.rigs[0].start(both.engines[0])
        assert both.codes <= {"engine_lost"}
        await both.verify()
        assert any(told.tokens >= 0 for rig in both.rigs for told in rig.told)
