"""A stub engine, a gateway with every check on, and the servers it is compared with."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

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
    gateway: int  # process ids
    asgi: int
    fastapi: int
    asgi_port: int
    fastapi_port: int

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
    folder: Path, database_url: str | None, redis_url: str | None
) -> AsyncIterator[Stack]:
    """All of it ready; ended on leaving."""
    settings = settings_in(folder, database_url, redis_url, limit_deadline_s=STORE_S)
    organisation, key = await tenant_in(settings, KeyTerms(), BUDGET_NANO, RATES)
    ports = tuple(free_ports(2))
    programs = [
        Program("engine", ("-m", "bench.gateway.engine", settings.engines[0], TOKEN_S)),
        gateway_of(settings, folder),
        Program("asgi", ("-m", "bench.gateway.peers", "asgi", str(ports[0]))),
        Program("fastapi", ("-m", "bench.gateway.peers", "fastapi", str(ports[1]))),
    ]
    async with AsyncExitStack() as running:
        for program in programs:
            await program.start(folder / "programs.log")
            running.push_async_callback(program.end)
        async with asyncio.timeout(START_S):
            for port in (settings.port, *ports):
                while not await _answers(settings, port):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        pids = [program.process.pid for program in programs if program.process]
        yield Stack(settings, key, organisation, pids[1], pids[2], pids[3], *ports)


async def _answers(settings: Settings, port: int) -> bool:
    if port == settings.port:
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
