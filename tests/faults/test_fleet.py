"""Two gateways before two engines, as real processes that share a database and Redis alone.

Engines are found in Redis, killed, stopped and drained under load; the books are checked.
"""

import asyncio
import contextlib
import dataclasses
import json
import random
import signal
import urllib.request
from pathlib import Path

import pytest
import redis

from engine.client import EngineClient, EngineLost
from gateway.cli.drain import run as drain
from gateway.config import Secret
from gateway.identity.service import KeyTerms
from gateway.usage.reconcile import merged
from tests.e2e.server import free_ports
from tests.faults.rig import LONGEST_S, PATIENCE_S, Rig
from tests.stack import Program, gateway_of, settings_in, tenant_in

SILENCE_S = 2.0
PASS_S = 0.005


@dataclasses.dataclass
class Pair:
    """Each rig has a gateway and an engine; every gateway uses every engine."""

    rigs: list[Rig]
    addresses: list[str]

    @property
    def engines(self) -> list[Program]:
        return [rig.engine for rig in self.rigs]

    async def all_up(self) -> None:
        """Until every gateway uses every engine."""

        def up(rig: Rig) -> int:
            with urllib.request.urlopen(f"http://127.0.0.1:{rig.settings.port}/readyz") as answer:
                return sum(engine["up"] for engine in json.load(answer)["engines"])

        async def everywhere() -> bool:
            found = [await asyncio.to_thread(up, rig) for rig in self.rigs]
            return found == [len(self.rigs)] * len(self.rigs)

        await self.rigs[0].eventually(everywhere, "every engine is up")

    async def recorded(self):
        pages = []
        for address in self.addresses:
            async with await connected(address) as client:
                start = 0
                while page := await client.recorded(start, 1000):
                    pages.append(page)
                    start += len(page)
        return merged(pages)


async def connected(address: str) -> EngineClient:
    """Once it has started."""
    async with asyncio.timeout(LONGEST_S):
        while True:
            try:
                return await EngineClient.connect(address, gateway="test")
            except EngineLost:
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def pair(folder: Path, redis_url: str, database_url: str):
    ports = free_ports(2)
    addresses = [f"tcp:127.0.0.1:{port}" for port in ports]
    rigs: list[Rig] = []
    organisation = key = ""
    for number, address in enumerate(addresses):
        home = folder / str(number)
        home.mkdir()
        settings = settings_in(
            home, database_url, redis_url, settle_interval_s=0.05, rollup_interval_s=0.2,
            orphan_patience_s=PATIENCE_S, engine_silence_s=SILENCE_S, pepper=Secret("ab" * 32),
        )  # fmt: skip
        settings = dataclasses.replace(settings, engines=("redis:",))
        if not key:
            organisation, key = await tenant_in(settings, KeyTerms())
        engine = Program("engine", ("-m", "tests.faults.brain", address, str(home / "engine"),
                                    str(PASS_S), redis_url))  # fmt: skip
        rigs.append(Rig(home, settings, key, organisation, engine, gateway_of(settings, home)))
    both = Pair(rigs, addresses)
    for rig in rigs:
        rig.recorded = both.recorded  # what is billed is with either engine
    try:
        for rig in rigs:
            await rig.start(rig.engine)
        for rig in rigs:
            await rig.start(rig.gateway)
        for rig in rigs:
            await rig.ready()
        yield both
    finally:
        for rig in rigs:
            await rig.gateway.end()
            await rig.engine.end()


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
        codes = {code for rig in both.rigs for code in rig.refused}
        assert codes <= {"engine_lost"}
        told_all = [told for rig in both.rigs for told in rig.told]
        both.rigs[0].told = told_all
        await both.rigs[0].verify()
        assert any(told.tokens >= 0 for told in told_all)
