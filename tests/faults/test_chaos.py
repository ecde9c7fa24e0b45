"""Two gateways, two engines, Redis and Postgres, killed and hung in turn under load: nothing is
lost, nothing is doubled, and clients are told errors that are documented.

``make test-chaos`` kills and hangs each, and goes on at random for ``ROUNDS`` more; here each falls
once.
"""

import asyncio
import contextlib
import os
import random
import tempfile
from pathlib import Path

import pytest

from tests.e2e.server import free_ports
from tests.faults.pair import SILENCE_S, Pair, pair
from tests.faults.victims import Ours, PostgresServer, RedisServer, Victim
from tests.services import Postgres

ROUNDS = int(os.environ.get("ROUNDS", "0"))
CLIENTS = 3  # of each gateway
CHECK_EVERY = 12  # rounds
DOCUMENTED = {"engine_lost", "no_engine", "deadline_exceeded", "limits_unavailable"}
CUT_OFF = {"APIConnectionError", "APITimeoutError", "RemoteProtocolError", "ReadError"}


def victims(both: Pair, redis: RedisServer, postgres: PostgresServer) -> list[Victim]:
    ours: list[Victim] = []
    for number, rig in enumerate(both.rigs):
        ours.append(Ours(rig, rig.gateway, f"gateway {number}"))
        ours.append(Ours(rig, rig.engine, f"engine {number}"))
    return [*ours, redis, postgres]


async def fall(victim: Victim, how: str, rng: random.Random) -> None:
    if how == "kill":
        await victim.kill()
        return
    victim.stop()
    try:
        await asyncio.sleep(rng.uniform(0.2, 1.5 * SILENCE_S))
    finally:
        victim.go_on()


@pytest.mark.slow
async def test_whatever_falls_under_load_the_books_agree(tmp_path):
    rng = random.Random(int(os.environ.get("SEED", "1")))
    with contextlib.ExitStack() as ending:
        folder = ending.enter_context(tempfile.TemporaryDirectory(prefix="pg-"))
        postgres = PostgresServer(Path(folder))
        ending.callback(postgres.end)
        redis = RedisServer(*free_ports(1))
        ending.callback(redis.end)
        url = await asyncio.to_thread(Postgres(postgres.uri).create)
        async with pair(tmp_path, redis.url, url) as both:
            everybody = victims(both, redis, postgres)
            falls = list(zip(everybody, ["kill", "hang"] * 3, strict=True))
            if ROUNDS:
                falls += zip(everybody, ["hang", "kill"] * 3, strict=True)
            rng.shuffle(falls)
            falls += [(rng.choice(everybody), rng.choice(["kill", "hang"])) for _ in range(ROUNDS)]
            for first in range(0, len(falls), CHECK_EVERY):
                async with both.rigs[0].load(CLIENTS, rng), both.rigs[1].load(CLIENTS, rng):
                    for victim, how in falls[first : first + CHECK_EVERY]:
                        await asyncio.sleep(rng.uniform(0.05, 0.6))
                        await fall(victim, how, rng)
                        for rig in both.rigs:
                            await rig.ready()
                    await both.all_up()
                    for rig in both.rigs:
                        await rig.streaming()
                await both.verify()
            assert both.codes <= DOCUMENTED | CUT_OFF
            told = [told for rig in both.rigs for told in rig.told]
            assert sum(told.tokens >= 0 for told in told) > len(falls)
