"""Two gateways before two engines, as real processes that share a database and Redis alone."""

import asyncio
import contextlib
import dataclasses
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

from engine.client import EngineClient
from engine.protocol import Counts
from engine.stream import EngineLost
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

    @property
    def codes(self) -> set[str]:
        """Of the errors that clients were told."""
        return {code for rig in self.rigs for code in rig.refused}

    async def verify(self) -> None:
        """See ``Rig.verify``: one ledger for both."""
        first = self.rigs[0]
        for rig in self.rigs[1:]:
            first.told += rig.told
            rig.told = []
        await first.verify()

    async def all_up(self) -> None:
        """Until every gateway uses every engine."""

        def up(rig: Rig) -> int:
            with urllib.request.urlopen(f"http://127.0.0.1:{rig.settings.port}/readyz") as answer:
                return sum(engine["up"] for engine in json.load(answer)["engines"])

        async def everywhere() -> bool:
            found = [await asyncio.to_thread(up, rig) for rig in self.rigs]
            return found == [len(self.rigs)] * len(self.rigs)

        await self.rigs[0].eventually(everywhere, "every engine is up")

    async def recorded(self) -> dict[str, Counts]:
        pages: list[list[Counts]] = []
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
async def pair(
    folder: Path, redis_url: str, database_url: str, *, silence_s: float = SILENCE_S
) -> AsyncIterator[Pair]:
    ports = free_ports(2)
    addresses = [f"tcp:127.0.0.1:{port}" for port in ports]
    rigs: list[Rig] = []
    organisation = key = ""
    for number, address in enumerate(addresses):
        home = folder / str(number)
        home.mkdir()
        settings = settings_in(
            home, database_url, redis_url, settle_interval_s=0.05, rollup_interval_s=0.2,
            orphan_patience_s=PATIENCE_S, engine_silence_s=silence_s, pepper=Secret("ab" * 32),
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
