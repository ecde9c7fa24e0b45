"""A stub engine, a gateway with every check on, and the servers it is compared with."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gateway.cores import Cores
from gateway.cli.probe import is_ready
from gateway.config import Settings
from gateway.db import Database
from gateway.identity.service import KeyTerms
from gateway.limits.rules import Rates
from gateway.usage.report import EVER, UsageReport
from tests.e2e.server import free_ports
from tests.stack import Program, gateway_of, settings_in, tenant_in

START_S = 60.0
STORE_S = 5.0  # a busy machine is no lost Redis
TOKEN_S = "0.002"  # of one pass of the stub, after the first token
SETTLE_S = 120.0
GATEWAY_CORES = 2  # the loop, and what settles and tokenises beside it
PLENTY = 10**9
RATES = Rates(
    requests_per_minute=PLENTY, tokens_per_minute=PLENTY, requests_per_day=PLENTY,
    tokens_per_day=PLENTY, concurrency=10**5,
)  # fmt: skip
BUDGET_NANO = 10**15  # a million dollars


class NotSettled(RuntimeError):
    """Requests are missing in the ledger: there is nothing to report."""


@dataclass(frozen=True, slots=True)
class Stack:
    settings: Settings
    key: str
    organisation: str
    gateways: tuple[int, ...]  # process ids
    asgi: int
    fastapi: int
    ports: tuple[int, ...]  # of the gateways
    asgi_port: int
    fastapi_port: int

    @property
    def gateway(self) -> int:
        """The first."""
        return self.gateways[0]

    @property
    def port(self) -> int:
        return self.settings.port

    async def settled(self, requests: int) -> None:
        """Until the ledger has so many. Raises NotSettled."""
        database = Database(self.settings.database)
        found = 0
        try:
            for _ in range(int(SETTLE_S * 2)):
                async with database.reading() as session:
                    found = (await UsageReport(session, self.organisation).total(EVER)).requests
                if found >= requests:
                    return
                await asyncio.sleep(0.5)
        finally:
            await database.close()
        raise NotSettled(f"{found} of {requests} requests are in the ledger")


@asynccontextmanager
async def stack(
    folder: Path,
    database_url: str | None,
    redis_url: str | None,
    cores: Cores,
    *,
    gateways: int = 1,
) -> AsyncIterator[Stack]:
    """All of it ready; ended on leaving. Several gateways have a port each, and all else in common:
    so all get the same share of the requests."""
    settings = settings_in(
        folder, database_url, redis_url, limit_deadline_s=STORE_S, workers=gateways
    )
    organisation, key = await tenant_in(settings, KeyTerms(), BUDGET_NANO, RATES)
    asgi_port, fastapi_port, *free = free_ports(2 * gateways)
    workers = [settings] + [
        replace(settings, worker=number, port=free.pop(), metrics_port=free.pop())
        for number in range(1, gateways)
    ]
    programs = [
        Program("engine", ("-m", "bench.gateway.engine", settings.engines[0], TOKEN_S)),
        *(gateway_of(each, folder) for each in workers),
        Program("asgi", ("-m", "bench.gateway.peers", "asgi", str(asgi_port))),
        Program("fastapi", ("-m", "bench.gateway.peers", "fastapi", str(fastapi_port))),
    ]
    ports = tuple(each.port for each in workers)
    async with AsyncExitStack() as running:
        for program in programs:
            with cores.next(GATEWAY_CORES if program.name == "gateway" else 1):
                await program.start(folder / "programs.log")
            running.push_async_callback(program.end)
        async with asyncio.timeout(START_S):
            for port in (*ports, asgi_port, fastapi_port):
                while not await _answers(settings, port, ready=port in ports):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        _, *pids, asgi, fastapi = (each.process.pid for each in programs if each.process)
        yield Stack(settings, key, organisation, tuple(pids), asgi, fastapi, ports, asgi_port,
                    fastapi_port)  # fmt: skip


async def _answers(settings: Settings, port: int, *, ready: bool) -> bool:
    if ready:
        return await is_ready(settings.host, port)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def cpu_s(process: int) -> float:
    """User and system time of all threads."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
