"""Gateway and engine killed at random moments under load: the books say what clients were told.

Each fifth time the gateway is told to end instead, and has to end well.
``make test-soak`` does it 200 times and more (``KILLS``); here a few, on both databases.
"""

import asyncio
import os
import random

import pytest

from tests.faults.rig import running
from tests.services import Postgres

KILLS = int(os.environ.get("KILLS", "5"))
CLIENTS = 6
CHECK_EVERY = 10  # kills


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_whatever_is_killed_nothing_is_doubled_and_nothing_is_lost(
    tmp_path, backend, request
):
    url = None
    if backend == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        url = await asyncio.to_thread(server.create)
    seed = int(os.environ.get("SEED", "1"))
    rng = random.Random(seed)
    async with running(tmp_path, database_url=url) as rig:
        done = 0
        while done < KILLS:
            async with rig.load(CLIENTS, rng):
                for _ in range(min(CHECK_EVERY, KILLS - done)):
                    await asyncio.sleep(rng.uniform(0.05, 0.8))
                    if done % 5 == 4:
                        assert await rig.stop_gateway() == 0, rig.tail()
                    else:
                        await rig.kill(rng.choice([rig.gateway, rig.gateway, rig.engine]))
                    await rig.ready()
                    done += 1
                await asyncio.sleep(0.3)
            await rig.verify()
        assert len(rig.told) > KILLS
        assert any(told.tokens >= 0 for told in rig.told)
