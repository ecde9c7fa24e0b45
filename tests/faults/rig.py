"""A gateway and an engine as real processes that may be killed at any moment, and their clients.

What each client was told is kept, so that afterwards the books can be held against it.
"""

import asyncio
import contextlib
import random
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from openai import APIError, AsyncOpenAI
from sqlalchemy import text

from engine.client import EngineClient
from engine.protocol import Counts
from gateway.cli.probe import is_ready
from gateway.config import Settings
from gateway.db import Database
from gateway.identity.service import KeyTerms
from gateway.usage.reconcile import Findings, Reconciliation, merged
from gateway.usage.report import EVER, Usage, UsageReport
from gateway.usage.rollups import Rollups
from tests.gateway.serving import BASE
from tests.stack import Program, gateway_of, settings_in, tenant_in

PATIENCE_S = 3.0  # until what no engine knows is closed
LONGEST_S = 60.0  # for anything here
REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Told:
    """One answer as its client saw it."""

    request: str
    tokens: int  # in its usage; -1 where it was cut off before that


@dataclass
class Rig:
    folder: Path
    settings: Settings
    key: str
    organisation: str
    engine: Program
    gateway: Program
    told: list[Told] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # codes
    chunks: int = 0  # that clients were sent

    @property
    def log(self) -> Path:
        return self.folder / "programs.log"

    def tail(self) -> str:
        """What the programs said last."""
        return self.log.read_text("utf-8", "replace")[-3000:]

    async def start(self, program: Program) -> None:
        await program.start(self.log)

    async def streaming(self) -> None:
        """Until more of an answer arrives than has so far."""
        before = self.chunks

        async def some_more() -> bool:
            return self.chunks > before + 3

        await self.eventually(some_more, "answers arrive")

    async def ready(self) -> None:
        await self.eventually(self.is_ready, "the gateway is ready")

    async def is_ready(self) -> bool:
        return await is_ready(self.settings.host, self.settings.port)

    async def kill(self, program: Program) -> None:
        """As a power cut would, then start it again."""
        await program.end()
        await self.start(program)

    async def stop_gateway(self) -> int:
        """As whoever operates it does, then start it again. Returns what it exited with."""
        await self.gateway.end(signal.SIGTERM)
        assert self.gateway.process is not None
        code = self.gateway.process.returncode
        await self.start(self.gateway)
        assert code is not None
        return code

    def client(self, **options: Any) -> AsyncOpenAI:
        base_url = f"http://{self.settings.host}:{self.settings.port}/v1"
        settings: dict[str, Any] = {"max_retries": 0, "timeout": LONGEST_S} | options
        return AsyncOpenAI(base_url=base_url, api_key=self.key, **settings)

    async def ask(self, client: AsyncOpenAI, tokens: int, *, leave_after: int | None = None) -> str:
        """One stream to its end, or left early. Returns "" or the code of its error."""
        request, usage, chunks = "", -1, 0
        code = ""
        try:
            raw = await client.chat.completions.with_raw_response.create(
                model=BASE, messages=[{"role": "user", "content": "Hello"}], max_tokens=tokens,
                stream=True, stream_options={"include_usage": True},
                extra_body={"ignore_eos": True, "seed": random.randrange(10**6)},
            )  # fmt: skip
            request = raw.headers["x-request-id"]
            async with raw.parse() as stream:
                async for chunk in stream:
                    chunks += 1
                    self.chunks += 1
                    if chunk.usage is not None:
                        usage = chunk.usage.completion_tokens
                    if leave_after is not None and chunks >= leave_after:
                        break
        except APIError as error:
            code = str(error.code or type(error).__name__)
        except (OSError, EOFError) as error:
            code = type(error).__name__
        except Exception as error:  # the client's own HTTP library has errors of its own
            if not type(error).__module__.startswith(("httpx", "httpcore", "h11")):
                raise
            code = type(error).__name__
        if REQUEST_ID.fullmatch(request):
            self.told.append(Told(request, usage))
        if code:
            self.refused.append(code)
        return code

    @contextlib.asynccontextmanager
    async def load(self, clients: int, rng: random.Random) -> AsyncIterator[None]:
        """Clients that ask again and again, some of which leave early."""

        async def one(client: AsyncOpenAI) -> None:
            while not ending.is_set():
                leave = rng.choice([None, None, None, rng.randrange(1, 9)])
                if await self.ask(client, rng.randrange(1, 24), leave_after=leave):
                    await asyncio.sleep(0.1)

        ending = asyncio.Event()
        async with self.client() as client:
            tasks = [asyncio.create_task(one(client)) for _ in range(clients)]
            try:
                yield
            finally:
                ending.set()
                await asyncio.wait_for(asyncio.gather(*tasks), LONGEST_S)

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[Database]:
        database = Database(self.settings.database)
        try:
            yield database
        finally:
            await database.close()

    async def recorded(self) -> dict[str, Counts]:
        """What the engine kept through all its deaths."""
        client = await EngineClient.connect(self.settings.engines[0], gateway="test")
        pages: list[list[Counts]] = []
        async with client:
            while page := await client.recorded(sum(map(len, pages)), 1000):
                pages.append(page)
        return merged(pages)

    async def events(self) -> dict[str, tuple[int, str, bool]]:
        """Request -> (completion tokens, outcome, recovered). Fails if one is there twice."""
        query = text("SELECT id, completion_tokens, outcome, recovered FROM usage_event")
        async with self.database() as database, database.reading() as session:
            rows = (await session.execute(query)).all()
        found = {name: (tokens, outcome, bool(saved)) for name, tokens, outcome, saved in rows}
        assert len(found) == len(rows), "an event is in the ledger twice"
        return found

    async def total(self) -> Usage:
        async with self.database() as database, database.reading() as session:
            return await UsageReport(session, self.organisation).total(EVER)

    async def reconcile(self) -> Findings:
        async with self.database() as database:
            await Rollups(database).roll_up()
            proof = Reconciliation(database, now=datetime.now(UTC).timestamp() + 3600)
            return await proof.run(await self.recorded())

    async def settled(self) -> None:
        """Until every request that a client or the engine knows of is in the ledger."""

        async def all_there() -> bool:
            events = await self.events()
            known = {name for name, counts in (await self.recorded()).items()}
            return known | {told.request for told in self.told} <= events.keys()

        await self.eventually(all_there, "all requests are in the ledger")

    async def eventually(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                while not await condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {LONGEST_S:g} s: {what}\n{self.tail()}") from None

    async def verify(self) -> None:
        """Nothing is doubled, nothing is lost, and everybody says the same."""
        await self.settled()
        events = await self.events()
        for told in self.told:
            tokens, outcome, recovered = events[told.request]
            if told.tokens >= 0:  # its client holds a bill
                assert (tokens, outcome, recovered) == (told.tokens, "completed", False), told
        differences = [str(each) for each in (await self.reconcile()).differences]
        assert differences == []
        usage = await self.total()
        assert usage.requests == len(events)
        assert usage.completion_tokens == sum(tokens for tokens, _, _ in events.values())


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    *,
    database_url: str | None = None,
    redis_url: str | None = None,
    pass_seconds: float = 0.002,
    terms: KeyTerms = KeyTerms(),  # noqa: B008
    budget: int | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    chosen = settings_in(
        folder, database_url, redis_url, settle_interval_s=0.05, rollup_interval_s=0.2,
        orphan_patience_s=PATIENCE_S, **settings,
    )  # fmt: skip
    organisation, key = await tenant_in(chosen, terms, budget)
    rig = Rig(
        folder, chosen, key, organisation,
        Program("engine", ("-m", "tests.faults.brain", chosen.engines[0],
                           str(folder / "engine"), str(pass_seconds))),
        gateway_of(chosen, folder),
    )  # fmt: skip
    try:
        await rig.start(rig.engine)
        await rig.start(rig.gateway)
        await rig.ready()
        yield rig
    finally:
        await rig.gateway.end()
        await rig.engine.end()
